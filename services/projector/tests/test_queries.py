import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from noetl.projection.v1 import projection_pb2 as pb
from noetl.projection.v1 import projection_pb2_grpc as pb_grpc
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import ProjectionClient
from noetl_contracts.status import raising_noetl_errors
from noetl_core.errors import DeadlinePassed, InvalidInput, NotFound, NotPermitted, Overloaded
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import RowPlace
from noetl_core.sharding import shard_of
from noetl_projector.application import version_signals
from noetl_projector.application.answer_queries import AnswerQueries
from noetl_projector.application.troubles import Troubles
from noetl_projector.application.version_signals import VersionSignals
from noetl_projector.entrypoints import projection_service
from noetl_projector.settings import Settings
from noetl_servicekit.env import Address, SettingsInvalid
from noetl_servicekit.grpc_server import serve_grpc
from noetl_servicekit.health import Health
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens, token_sha256
from noetl_testkit.compliance.projections import SCOPE, limited, projected, running
from noetl_testkit.histories import EXECUTION, NOON, History, two_steps
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.memory.snapshots import InMemorySnapshots
from noetl_testkit.until import until


class Setup:
    def __init__(self) -> None:
        self.store = InMemoryProjections()
        self.signals = VersionSignals()
        self.troubles = Troubles()
        self.is_owner = True
        self.queries = AnswerQueries(
            self.store,
            signals=self.signals,
            troubles=self.troubles,
            shard_count=64,
            owns=lambda shard: self.is_owner,
        )

    async def write(self, history: History, *, after: int = 0, through: int | None = None) -> None:
        await self.store.write([projected(history, after=after, through=through)])


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_a_row_that_is_there_is_the_answer(setup: Setup) -> None:
    await setup.write(two_steps(History()))

    view = await setup.queries.get_execution(SCOPE, EXECUTION, min_version=18)

    assert view.stream_version == 18


async def test_an_execution_of_another_tenant_does_not_exist(setup: Setup) -> None:
    await setup.write(two_steps(History()))

    with pytest.raises(NotFound) as refusal:
        await setup.queries.get_execution(Scope(tenant_id="other", organization_id="x"), EXECUTION)

    assert refusal.value.code == "execution.not_found"


@pytest.mark.parametrize("is_owner", [True, False])
async def test_who_asks_for_a_later_version_gets_it_when_it_is_written(setup: Setup, is_owner: bool) -> None:
    setup.is_owner = is_owner
    history = two_steps(History())
    await setup.write(history, through=4)
    asking = asyncio.create_task(setup.queries.get_execution(SCOPE, EXECUTION, min_version=18, wait_seconds=10))
    await until(lambda: setup.signals.waiting == 1)

    await setup.write(history, after=4, through=9)
    setup.signals.announce(EXECUTION)
    await setup.write(history, after=9)
    setup.signals.announce(EXECUTION)

    assert (await asking).stream_version == 18
    assert setup.signals.waiting == 0


async def test_who_asks_for_an_execution_that_is_not_there_yet_gets_it_when_it_is(setup: Setup) -> None:
    asking = asyncio.create_task(setup.queries.get_execution(SCOPE, EXECUTION, min_version=1, wait_seconds=10))
    await until(lambda: setup.signals.waiting == 1)

    await setup.write(two_steps(History()))
    setup.signals.announce(EXECUTION)

    assert (await asking).stream_version == 18


async def test_a_version_that_does_not_come_in_time_is_a_deadline_that_says_where_it_stands(setup: Setup) -> None:
    await setup.write(two_steps(History()), through=4)

    with pytest.raises(DeadlinePassed, match="at version 4, not yet at 18"):
        await setup.queries.get_execution(SCOPE, EXECUTION, min_version=18, wait_seconds=0.05)


async def test_nobody_waits_for_an_execution_in_quarantine(setup: Setup) -> None:
    await setup.write(two_steps(History()), through=4)
    for _ in range(3):
        setup.troubles.fail(EXECUTION, shard=0, target=18, version=5, reason="broken")

    with pytest.raises(DeadlinePassed):
        await setup.queries.get_execution(SCOPE, EXECUTION, min_version=18, wait_seconds=3600)


async def test_not_everybody_may_wait_at_once(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_signals, "MAX_WAITING", 0)

    with pytest.raises(Overloaded):
        await setup.queries.get_execution(SCOPE, EXECUTION)


@asynccontextmanager
async def served(setup: Setup, directory: Path, *, caller: str = "service") -> AsyncIterator[grpc.aio.Channel]:
    tokens_file = directory / "tokens.json"
    entries = [
        f'{{"name": "{name}", "token_sha256": "{token_sha256(name + "-token")}", "tenant_id": "{tenant}", '
        f'"organization_id": "{tenant}", "role": "{name}"}}'
        for name, tenant in (("service", "*"), ("writer", "default"))
    ]
    tokens_file.write_text(f'{{"tokens": [{", ".join(entries)}]}}')
    async with (
        serve_grpc(
            Address(host="127.0.0.1", port=0),
            register=lambda server: projection_service.register(server, setup.queries, InMemorySnapshots()),
            service_names=(projection_service.SERVICE_NAME,),
            tokens=Tokens(tokens_file),
            metrics=GrpcServerMetrics(MetricSet()),
            health=Health(),
            drain_seconds=0.1,
        ) as address,
        open_channel(str(address), token=f"{caller}-token") as channel,
    ):
        yield channel


async def test_queries_are_answered_over_grpc_as_the_client_asks_them(setup: Setup, tmp_path: Path) -> None:
    for number in range(3):
        await setup.write(running(History(EXECUTION + number))[0])
    async with served(setup, tmp_path) as channel:
        client = ProjectionClient(channel)

        view = await client.get_execution(SCOPE, EXECUTION)
        page = await client.list_executions(SCOPE, page_size=2)
        rest = await client.list_executions(SCOPE, page_size=2, page_token=page.next_page_token)
        silent = (await client.silent_commands(limit=2)).commands

        assert view == setup.store.executions[EXECUTION].view
        assert [one.execution_id - EXECUTION for one in (*page.executions, *rest.executions)] == [2, 1, 0]
        assert [one.execution_id - EXECUTION for one in silent] == [0, 1]
        assert silent[0].lease_until == NOON + timedelta(seconds=32)
        with pytest.raises(NotFound):
            await client.get_execution(SCOPE, EXECUTION + 9)
        with pytest.raises(DeadlinePassed):
            await client.get_execution(SCOPE, EXECUTION, min_version=99, wait_seconds=0.3)


async def test_silent_commands_are_listed_page_by_page(setup: Setup, tmp_path: Path) -> None:
    for number in range(5):
        await setup.write(running(History(EXECUTION + number))[0])
    async with served(setup, tmp_path) as channel:
        stub: pb_grpc.ProjectionServiceAsyncStub = pb_grpc.ProjectionServiceStub(channel)
        found: list[int] = []
        token = ""
        for _ in range(9):
            page = await stub.ListSilentCommands(pb.ListSilentCommandsRequest(page_size=2, page_token=token))
            found += [int(one.execution_id) - EXECUTION for one in page.commands]
            token = page.next_page_token
            if not token:
                break

        assert found == [0, 1, 2, 3, 4]
        with pytest.raises(InvalidInput), raising_noetl_errors():
            await stub.ListSilentCommands(pb.ListSilentCommandsRequest(page_token="x"))
        with pytest.raises(InvalidInput), raising_noetl_errors():
            await stub.ListSilentCommands(pb.ListSilentCommandsRequest(page_size=1001))
        with pytest.raises(InvalidInput), raising_noetl_errors():
            await stub.ListExecutions(pb.ListExecutionsRequest())


async def test_late_executions_are_listed_page_by_page(setup: Setup, tmp_path: Path) -> None:
    for number in range(5):
        await setup.write(limited(History(EXECUTION + number)))
    async with served(setup, tmp_path) as channel:
        client = ProjectionClient(channel)
        found: list[int] = []
        token = ""
        for _ in range(9):
            page = await client.passed_deadlines(limit=2, page_token=token)
            found += [one.execution_id - EXECUTION for one in page.executions]
            token = page.next_page_token
            if not token:
                break

        assert found == [0, 1, 2, 3, 4]
        assert page.executions[0].deadline == NOON + timedelta(seconds=7)
        for wrong in ("x", "x/1", "2026-01-01T00:00:00Z/y"):
            with pytest.raises(InvalidInput):
                await client.passed_deadlines(page_token=wrong)


async def test_rows_are_listed_as_they_are_stored_once_they_include_what_is_waited_for(
    setup: Setup, tmp_path: Path
) -> None:
    history = two_steps(History())
    await setup.write(history, through=4)
    wanted = {EXECUTION: 18, EXECUTION + 1: 1}
    async with served(setup, tmp_path) as channel:
        client = ProjectionClient(channel)
        too_early = await client.list_rows(SCOPE, wanted, wait_seconds=0.2)
        asking = asyncio.create_task(client.list_rows(SCOPE, {EXECUTION: 18}, wait_seconds=60))
        await until(lambda: setup.signals.waiting == 1)
        await setup.write(history, after=4)
        setup.signals.announce(EXECUTION)

        page = await asking

        assert too_early.versions == {EXECUTION: 4}
        assert page.versions == {EXECUTION: 18}
        stored = await setup.store.list_rows(SCOPE, [EXECUTION], limit=100)
        assert page == replace(stored, shard_count=64)
        assert page.columns[EXECUTION].shard == shard_of(EXECUTION, page.shard_count)
        assert await client.list_rows(SCOPE, wanted, after=RowPlace.from_token("loops/1/x")) == replace(page, rows=())
        with pytest.raises(InvalidInput):
            await client.list_rows(SCOPE, {EXECUTION + number: 0 for number in range(201)})
    with pytest.raises(InvalidInput):
        RowPlace.from_token("nothing/1/x")


async def test_executions_that_have_a_row_are_listed_of_any_tenant(setup: Setup, tmp_path: Path) -> None:
    for number, tenant in ((1, "default"), (2, "rival")):
        await setup.write(two_steps(History(EXECUTION + number, tenant_id=tenant)))
    async with served(setup, tmp_path) as channel:
        client = ProjectionClient(channel)

        first = await client.list_live(None, limit=1)
        second = await client.list_live(None, after=first.following or 0, limit=1)

        assert first == await setup.store.list_live(None, limit=1)
        assert [(one.execution_id - EXECUTION, one.tenant_id) for one in second.executions] == [(2, "rival")]
        assert second.following is None
        assert len((await client.list_live(SCOPE)).executions) == 1
        with pytest.raises(InvalidInput):
            await client.list_live(None, limit=1001)


async def test_only_noetl_s_own_services_may_ask(setup: Setup, tmp_path: Path) -> None:
    async with served(setup, tmp_path, caller="writer") as channel:
        client = ProjectionClient(channel)

        for call in (
            client.get_execution(SCOPE, EXECUTION),
            client.list_executions(SCOPE),
            client.silent_commands(),
            client.passed_deadlines(),
            client.list_rows(SCOPE, {EXECUTION: 0}),
            client.list_live(None),
        ):
            with pytest.raises(NotPermitted):
                await call


ENVIRONMENT = {
    "NOETL_POSTGRES_DSN": "postgres://projector:secret@db/noetl",
    "NOETL_API_ADDRESS": "api:7000",
    "NOETL_NATS_URL": "nats://bus:4222",
    "NOETL_TOKEN": "secret",
}


def test_settings_have_defaults_and_keep_their_secrets(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text('{"tokens": []}')
    settings = Settings.from_env({**ENVIRONMENT, "NOETL_TOKENS_FILE": str(tokens)})

    assert (settings.batch_size, settings.head_poll_seconds, settings.ownership.shard_count) == (500, 3.0, 64)
    assert "secret" not in repr(settings)


def test_all_wrong_settings_are_refused_together() -> None:
    with pytest.raises(SettingsInvalid) as refusal:
        Settings.from_env({"NOETL_PROJECTION_BATCH_SIZE": "0", "NOETL_SHARD_COUNT": "many"})

    problems = " ".join(refusal.value.problems)
    for name in ("POSTGRES_DSN", "API_ADDRESS", "NATS_URL", "TOKEN", "TOKENS_FILE", "BATCH_SIZE", "SHARD_COUNT"):
        assert f"NOETL_{name}" in problems or f"NOETL_PROJECTION_{name}" in problems


def test_a_tokens_file_that_cannot_be_used_is_refused_together_with_other_problems(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text('{"tokens": [{"name": "ada"}]}')
    wrong = {"NOETL_TOKENS_FILE": str(tokens), "NOETL_PROJECTION_BATCH_SIZE": "0"}

    with pytest.raises(SettingsInvalid) as refusal:
        Settings.from_env({**ENVIRONMENT, **wrong})

    tokens_problem, batch_problem = refusal.value.problems
    assert tokens_problem.startswith("NOETL_TOKENS_FILE names")
    assert tokens_problem.endswith("which cannot be used: tokens[0]: token_sha256 must be a text")
    assert batch_problem == "NOETL_PROJECTION_BATCH_SIZE must be at least 1, not 0"
