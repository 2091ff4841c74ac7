"""Real api, planner, projector and reaper processes; the test is a worker that claims a command and falls silent."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import CatalogClient, CommandClient, EventLogClient, ExecutionClient
from noetl_core.errors import Unavailable
from noetl_core.fold import State, empty, fold_all
from noetl_core.ids import command_id
from noetl_core.ports.commands import CommandKey, Heartbeats, Worker
from noetl_core.ports.event_log import Scope
from noetl_core.recorded import record
from noetl_servicekit.tokens import token_sha256
from noetl_testkit.backends import NatsBackend, PostgresBackend, TemplateDatabase, fresh_database
from noetl_testkit.service_process import ServiceProcess
from noetl_testkit.until import until

SCOPE = Scope(tenant_id="default", organization_id="default")
WORKER = Worker(worker_id="worker-1")
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: silent}
workflow:
  - step: work
    tool: {kind: noop}
"""


class Stack:
    """The services, and what a worker and a user would call."""

    def __init__(self, directory: Path, dsn: str, nats_url: str, processes: ExitStack) -> None:
        self._directory = directory
        self._processes = processes
        self._common = {
            "NOETL_NATS_URL": nats_url,
            "NOETL_TOKEN": "service",
            "NOETL_TOKENS_FILE": str(directory / "tokens.json"),
            "NOETL_PAYLOAD_URL": (directory / "payloads").as_uri(),
            "NOETL_HEAD_POLL_SECONDS": "0.2",
            "NOETL_COMMAND_LEASE_SECONDS": "1",
            "NOETL_REAPER_INTERVAL_SECONDS": "0.2",
            "NOETL_PROJECTOR_ADDRESS": "127.0.0.1:1",
        }
        api = self.start("api", NOETL_POSTGRES_DSN=f"{dsn}?role=noetl_api")
        self._common["NOETL_API_ADDRESS"] = self.api_address = f"127.0.0.1:{api.port('grpc')}"
        projector = self.start("projector", NOETL_POSTGRES_DSN=f"{dsn}?role=noetl_projector")
        self._common["NOETL_PROJECTOR_ADDRESS"] = f"127.0.0.1:{projector.port('grpc')}"
        planner = self.start("planner")
        self._common["NOETL_PLANNER_ADDRESS"] = self.planner_address = f"127.0.0.1:{planner.port('grpc')}"

    def start(self, service: str, *, name: str = "", **env: str) -> ServiceProcess:
        process = ServiceProcess(
            f"noetl_{service}", {**self._common, **env}, directory=self._directory, name=name or service
        )
        return self._processes.enter_context(process)

    def reaper(self, name: str = "reaper") -> ServiceProcess:
        return self.start("reaper", name=name)

    @asynccontextmanager
    async def clients(self) -> AsyncIterator["Clients"]:
        async with open_channel(self.api_address, token="service") as channel:
            commands = CommandClient(
                default_address=self.planner_address,
                shard_count=64,
                connect=lambda address: open_channel(address, token="service"),
            )
            try:
                yield Clients(channel, commands)
            finally:
                await commands.close()


class Clients:
    def __init__(self, channel: grpc.aio.Channel, commands: CommandClient) -> None:
        self.catalog = CatalogClient(channel)
        self.executions = ExecutionClient(channel)
        self.log = EventLogClient(channel)
        self.commands = commands

    async def started(self) -> int:
        await self.catalog.register(SCOPE, PLAYBOOK)
        return (await self.executions.execute(SCOPE, path="silent")).execution_id

    async def state(self, execution_id: int) -> State:
        page = await self.log.read(None, execution_id, limit=1000)
        return fold_all(empty(execution_id), [record(event) for event in page.events])

    async def types(self, execution_id: int) -> list[str]:
        page = await self.log.read(None, execution_id, limit=1000)
        return [event.envelope().event_type for event in page.events]

    async def claimed(self, execution_id: int, *, attempt: int) -> CommandKey:
        """Claim an attempt as soon as there is one."""
        identity = command_id(execution_id=execution_id, step="work", activation=1, index=0, attempt=attempt)
        key = CommandKey(execution_id=execution_id, command_id=identity)

        async def claim() -> bool:
            try:
                (outcome,) = await self.commands.claim(WORKER, [key])
            except Unavailable:
                return False
            return outcome.command is not None

        await until(claim, seconds=60)
        return key


@pytest.fixture(scope="module")
def stack(
    postgres_server: PostgresBackend,
    installed_template: TemplateDatabase,
    nats_server: NatsBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("reaper")
    token: Mapping[str, str] = {
        "name": "service",
        "token_sha256": token_sha256("service"),
        "tenant_id": "*",
        "organization_id": "*",
        "role": "service",
    }
    (directory / "tokens.json").write_text(json.dumps({"tokens": [token]}))
    with fresh_database(postgres_server, installed_template) as dsn, ExitStack() as processes:
        yield Stack(directory, dsn, nats_server.url, processes)


def metric(process: ServiceProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port('ops')}/metrics") as answer:
        lines = str(answer.read().decode()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


async def test_a_silent_command_is_issued_again_until_its_attempts_are_exhausted(stack: Stack) -> None:
    async with stack.clients() as clients:
        reaper = stack.reaper()
        execution_id = await clients.started()
        for attempt in (1, 2, 3):
            await clients.claimed(execution_id, attempt=attempt)

        async def has_ended() -> bool:
            return (await clients.state(execution_id)).execution.status.is_final

        await until(has_ended, seconds=60)
        reaper.stop()

        state = await clients.state(execution_id)
        assert state.execution.status == "FAILED"
        assert state.execution.error is not None
        assert state.execution.error["code"] == "command.attempts_exhausted"
        assert (await clients.types(execution_id)).count("command.abandoned") == 3


async def test_a_worker_that_is_heard_of_keeps_its_command(stack: Stack) -> None:
    async with stack.clients() as clients:
        reaper = stack.reaper("reaper-b")
        execution_id = await clients.started()
        key = await clients.claimed(execution_id, attempt=1)
        before = metric(reaper, "noetl_reaper_sweeps_total")

        async def kept_alive() -> bool:
            assert await clients.commands.heartbeat(WORKER, [key]) == Heartbeats()
            return metric(reaper, "noetl_reaper_sweeps_total") > before + 10

        await until(kept_alive, seconds=60)
        await clients.commands.complete(
            WORKER,
            key,
            {"status": "ok", "reference": None, "parent_ref": None, "context": {}},
            wants_next=False,
        )
        reaper.stop()

        assert (await clients.state(execution_id)).execution.status == "COMPLETED"
        assert "command.abandoned" not in await clients.types(execution_id)


async def test_two_reapers_abandon_an_attempt_once(stack: Stack) -> None:
    async with stack.clients() as clients:
        reapers = [stack.reaper("reaper-c"), stack.reaper("reaper-d")]
        executions = await asyncio.gather(*(clients.started() for _ in range(6)))
        await asyncio.gather(*(clients.claimed(execution_id, attempt=1) for execution_id in executions))

        async def are_issued_again() -> bool:
            types = [await clients.types(execution_id) for execution_id in executions]
            return all(one.count("command.issued") == 2 for one in types)

        await until(are_issued_again, seconds=60)
        abandoned = [metric(reaper, "noetl_reaper_abandoned_total") for reaper in reapers]
        for reaper in reapers:
            reaper.stop()

        for execution_id in executions:
            assert (await clients.types(execution_id)).count("command.abandoned") == 1
        assert sum(abandoned) == 6


async def test_an_execution_that_was_cancelled_leaves_nothing_to_reap(stack: Stack) -> None:
    async with stack.clients() as clients:
        reaper = stack.reaper("reaper-e")
        execution_id = await clients.started()
        await clients.claimed(execution_id, attempt=1)
        await clients.executions.cancel(SCOPE, execution_id, reason="enough")
        await until(lambda: metric(reaper, "noetl_reaper_sweeps_total") > 15, seconds=60)
        await until(lambda: metric(reaper, "noetl_reaper_silent_commands") == 0, seconds=60)
        reaper.stop()

        assert "command.abandoned" not in await clients.types(execution_id)
