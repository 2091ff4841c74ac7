"""Real api and planner processes over PostgreSQL: a planner is killed, and the next one takes a long execution over."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import (
    CatalogClient,
    CommandClient,
    EventLogClient,
    ExecutionClient,
    RoutingSnapshotClient,
)
from noetl_core.append import Fence
from noetl_core.errors import Fenced, InvalidInput, NotPermitted, Unavailable
from noetl_core.ids import command_id
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_core.ports.event_log import Scope
from noetl_core.sharding import shard_of
from noetl_core.values import replace
from noetl_servicekit.tokens import token_sha256
from noetl_testkit.backends import NatsBackend, PostgresBackend, TemplateDatabase, fresh_database
from noetl_testkit.planning import ok
from noetl_testkit.service_process import ServiceProcess
from noetl_testkit.until import until

SCOPE = Scope(tenant_id="default", organization_id="default")
WORKER = Worker(worker_id="worker-1")
EVERY = 100
VISITS = 90
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: long}
workload: {n: 0}
workflow:
- step: poll
  tool: {kind: noop}
  set: {ctx.n: "{{ n + 1 }}"}
  next: {arcs: [{step: poll, when: "{{ n < 100000 }}"}]}
"""


class Stack:
    """An api, and planners one after the other under the same name."""

    def __init__(self, directory: Path, dsn: str, nats_url: str, processes: ExitStack) -> None:
        self.dsn = dsn
        self.running: list[int] = []
        self._directory = directory
        self._processes = processes
        self._planners = 0
        self._common = {
            "NOETL_NATS_URL": nats_url,
            "NOETL_TOKEN": "service",
            "NOETL_TOKENS_FILE": str(directory / "tokens.json"),
            "NOETL_PAYLOAD_URL": (directory / "payloads").as_uri(),
            "NOETL_HEAD_POLL_SECONDS": "0.2",
            "NOETL_PROJECTOR_ADDRESS": "127.0.0.1:1",
            "NOETL_ROUTING_SNAPSHOT_EVENTS": str(EVERY),
            "NOETL_INSTANCE": "the-planner",
        }
        api = self._start("api", "api", NOETL_POSTGRES_DSN=f"{dsn}?role=noetl_api", NOETL_INSTANCE="the-api")
        self._common["NOETL_API_ADDRESS"] = self.api_address = f"127.0.0.1:{api.port('grpc')}"
        self.planner = self.next_planner()

    def next_planner(self) -> ServiceProcess:
        """Another one, which knows nothing; the one before is gone or will be deposed."""
        self._planners += 1
        self.planner = self._start("planner", f"planner-{self._planners}")
        return self.planner

    def _start(self, service: str, name: str, **env: str) -> ServiceProcess:
        process = ServiceProcess(f"noetl_{service}", {**self._common, **env}, directory=self._directory, name=name)
        return self._processes.enter_context(process)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Clients]:
        async with open_channel(self.api_address, token="service") as channel:
            commands = CommandClient(
                default_address=f"127.0.0.1:{self.planner.port('grpc')}",
                shard_count=64,
                connect=lambda address: open_channel(address, token="service"),
            )
            try:
                yield Clients(
                    catalog=CatalogClient(channel),
                    executions=ExecutionClient(channel),
                    log=EventLogClient(channel),
                    routing=RoutingSnapshotClient(channel),
                    commands=commands,
                )
            finally:
                await commands.close()

    async def execute(self, statement: str, *values: object) -> None:
        """What an operator, or somebody worse, does to the database."""
        admin = await asyncpg.connect(self.dsn)
        try:
            await admin.execute(statement, *values)
        finally:
            await admin.close()

    def counts(self, name: str, labels: str = "") -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.planner.port('ops')}/metrics") as answer:
            lines = str(answer.read().decode()).splitlines()
        wanted = f"noetl_planner_{name}_total{labels}"
        return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{wanted} ", f"{wanted}{{")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """What a worker and a user call."""

    catalog: CatalogClient
    executions: ExecutionClient
    log: EventLogClient
    routing: RoutingSnapshotClient
    commands: CommandClient

    async def claim(self, execution_id: int, visit: int) -> GrantedCommand:
        identity = command_id(execution_id=execution_id, step="poll", activation=visit, index=0, attempt=1)
        key = CommandKey(execution_id=execution_id, command_id=identity)
        granted: list[GrantedCommand] = []

        async def claimed() -> bool:
            try:
                (outcome,) = await self.commands.claim(WORKER, [key])
            except Unavailable:
                return False
            granted.extend([outcome.command] if outcome.command else [])
            return bool(granted)

        await until(claimed, seconds=60)
        return granted[0]

    async def visit(self, command: GrantedCommand, times: int) -> GrantedCommand:
        for _ in range(times):
            completion = await self.commands.complete(WORKER, command.key, ok(), wants_next=True)
            assert completion.next is not None
            command = completion.next
        return command

    async def head(self, execution_id: int) -> int:
        return (await self.log.read(None, execution_id, limit=1)).head_version


@pytest.fixture(scope="module")
def stack(
    postgres_server: PostgresBackend,
    installed_template: TemplateDatabase,
    nats_server: NatsBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("takeover")
    tokens = [
        {
            "name": role,
            "token_sha256": token_sha256(role),
            "tenant_id": "*" if role == "service" else "default",
            "organization_id": "*" if role == "service" else "default",
            "role": role,
        }
        for role in ("service", "admin")
    ]
    (directory / "tokens.json").write_text(json.dumps({"tokens": tokens}))
    with fresh_database(postgres_server, installed_template) as dsn, ExitStack() as processes:
        yield Stack(directory, dsn, nats_server.url, processes)


@pytest.fixture(autouse=True)
async def nothing_stays_open(stack: Stack) -> AsyncIterator[None]:
    """What a test leaves open would be taken over in the next one too."""
    yield
    async with stack.worker() as worker:
        for execution_id in stack.running:
            await worker.executions.cancel(SCOPE, execution_id)
    stack.running.clear()


async def long_one(stack: Stack) -> tuple[GrantedCommand, int]:
    """The only open execution, of some hundred events, and the version of what its planner left when it was killed."""
    async with stack.worker() as worker:
        await worker.catalog.register(SCOPE, PLAYBOOK)
        execution_id = (await worker.executions.execute(SCOPE, path="long")).execution_id
        stack.running.append(execution_id)
        command = await worker.visit(await worker.claim(execution_id, 1), VISITS)
        head = await worker.head(execution_id)
        version = 0

        async def is_kept() -> bool:
            nonlocal version
            found = await worker.routing.find(execution_id)
            version = found.stream_version if found else 0
            return version > head - EVERY  # No other is due, so that none is on its way when the planner is killed.

        await until(is_kept)
    stack.planner.kill()
    return command, version


async def test_a_planner_that_takes_over_reads_only_the_events_after_the_snapshot(stack: Stack) -> None:
    command, version = await long_one(stack)
    stack.next_planner()

    async with stack.worker() as worker:
        head = await worker.head(command.key.execution_id)
        await until(lambda: stack.counts("recovery_events") > 0, seconds=60)
        after = await worker.visit(await worker.claim(command.key.execution_id, command.activation), 1)

    assert after.activation == VISITS + 2
    assert head > 5 * EVERY
    assert stack.counts("snapshots_used") == 1
    assert stack.counts("events_spared") == version
    assert stack.counts("recovery_events") == EVERY + head - version + 1, "the first page, and from the snapshot on"
    assert stack.counts("snapshots_refused") == stack.counts("quarantined") == 0


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE noetl.routing_snapshot SET body = overlay(body placing '\\x00' from 20)", "damaged"),
        ("UPDATE noetl.routing_snapshot SET rules = 'of another release'", "other_rules"),
        ("UPDATE noetl.routing_snapshot SET event_checksum = repeat('0', 64)", "other_log"),
        ("TRUNCATE noetl.routing_snapshot", ""),
    ],
)
async def test_whatever_became_of_the_snapshot_the_execution_goes_on_from_the_log(
    stack: Stack, statement: str, reason: str
) -> None:
    command, _ = await long_one(stack)
    await stack.execute(statement)
    stack.next_planner()

    async with stack.worker() as worker:
        after = await worker.visit(await worker.claim(command.key.execution_id, command.activation), 1)
        head = await worker.head(command.key.execution_id)
        await until(lambda: stack.counts("snapshots_written", '{outcome="written"}') > 0)

    assert after.activation == VISITS + 2
    assert stack.counts("recovery_events") >= head - 20
    assert stack.counts("quarantined") == 0
    if reason:
        assert stack.counts("snapshots_refused", f'{{reason="{reason}"}}') >= 1


async def test_api_keeps_what_the_owner_of_the_shard_leaves_and_nothing_else(stack: Stack) -> None:
    command, version = await long_one(stack)
    execution_id = command.key.execution_id
    shard = shard_of(execution_id, 64)
    async with stack.worker() as worker:
        found = await worker.routing.find(execution_id)
        assert found is not None
        assert found.stream_version == version
        for fence, refusal in (
            (Fence(role="planner", shard=shard, epoch=0), Fenced),
            (Fence(role="projector", shard=shard, epoch=0), InvalidInput),
        ):
            with pytest.raises(refusal):
                await worker.routing.keep(found, fence=fence)
        with pytest.raises(InvalidInput):
            await worker.routing.keep(
                replace(found, body=found.body + b"x"), fence=Fence(role="planner", shard=shard, epoch=1)
            )
        assert await worker.routing.find(execution_id + 1) is None
    async with open_channel(stack.api_address, token="admin") as channel:
        with pytest.raises(NotPermitted):
            await RoutingSnapshotClient(channel).find(execution_id)
    stack.next_planner()
