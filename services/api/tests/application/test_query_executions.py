from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from noetl_api.application import query_executions
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.telemetry import ApiMetrics
from noetl_core.append import END_KEY, AppendRequest, StreamAppend, StreamStart
from noetl_core.errors import DeadlinePassed, InvalidInput, NotFound, Unavailable
from noetl_core.events import to_draft
from noetl_core.execution_view import execution_view
from noetl_core.executions.events import (
    PlaybookCompleted,
    PlaybookInitialized,
    StepEntered,
    StepExited,
    WorkflowInitialized,
)
from noetl_core.fold import empty, fold_all
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.ports.projections import ExecutionPage, ExecutionView, SilentPage
from noetl_core.recorded import record
from noetl_core.upcasting.releases import UPCASTERS
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.memory.event_log import InMemoryEventLog

ADA = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.WRITER)
SERVICE = Caller(name="service", tenant_id="*", organization_id="*", role=Role.SERVICE)
ACME = Scope(tenant_id="acme", organization_id="ops")
HISTORY = (
    PlaybookInitialized(path="a/b", version=2, catalog_id="5", payload_ref=None),
    WorkflowInitialized(entry_step="one"),
    StepEntered(step="one", activation=1, consumes=("",)),
    StepExited(step="one", activation=1, status="ok"),
    PlaybookCompleted(),
)


class StandingProjections:
    """Projections that stand where the test puts them."""

    def __init__(self) -> None:
        self.view: ExecutionView | None = None
        self.failure: Exception | None = None

    async def get_execution(
        self, scope: Scope | None, execution_id: int, *, min_version: int = 0, wait_seconds: float = 0.0
    ) -> ExecutionView:
        if self.failure is not None:
            raise self.failure
        if self.view is None:
            raise NotFound("execution", execution_id, code="execution.not_found")
        return self.view

    async def list_executions(
        self,
        scope: Scope,
        *,
        status: str = "",
        path: str = "",
        parent_execution_id: int | None = None,
        page_size: int = 50,
        page_token: str = "",
    ) -> ExecutionPage:
        return ExecutionPage(executions=(), next_page_token=f"{scope.tenant_id}/{status}/{path}/{page_size}")

    async def silent_commands(self, *, limit: int = 100, page_token: str = "") -> SilentPage:
        raise AssertionError("api does not ask for silent commands")


class World:
    """An execution whose projection may be behind."""

    def __init__(self) -> None:
        self.log = InMemoryEventLog()
        self.signal = CommitSignal()
        self.metrics = MetricSet()
        self.projections = StandingProjections()
        self.execution_id = self.log.next_id()
        self.query = QueryExecutions(
            projections=self.projections, log=self.log, signal=self.signal, metrics=ApiMetrics(self.metrics)
        )

    async def happen(self, count: int) -> None:
        """The next events of the history."""
        done = len(self.log.streams[self.execution_id].events) if self.execution_id in self.log.streams else 0
        for place, content in enumerate(HISTORY[done : done + count], start=done):
            key = END_KEY if isinstance(content, PlaybookCompleted) else f"k{place}"
            stream = StreamAppend(
                execution_id=self.execution_id,
                drafts=(to_draft(content, idempotency_key=key),),
                start=StreamStart() if place == 0 else None,
            )
            await self.log.append(AppendRequest(tenant_id="acme", organization_id="ops", streams=(stream,)))
            self.signal.moved(self.execution_id, place + 1)

    def project(self, version: int) -> None:
        """What a projector would have written at a version."""
        events = self.log.streams[self.execution_id].events[:version]
        self.projections.view = execution_view(fold_all(empty(self.execution_id), map(record, events)))

    def answered_from(self, source: str) -> float:
        return self.metrics.value("noetl_api_execution_queries_total", source=source)


@pytest.fixture
def world() -> World:
    return World()


async def test_an_execution_without_a_row_is_folded_from_the_log(world: World) -> None:
    await world.happen(3)

    view = await world.query.get(ADA, None, world.execution_id)

    assert (view.status, view.path, view.version, view.stream_version) == ("RUNNING", "a/b", 2, 3)
    assert (view.last_event_type, view.last_node_name) == ("step.enter", "one")
    assert world.answered_from("log") == 1


@pytest.mark.parametrize("projected", [1, 2, 3, 4])
async def test_a_row_that_is_behind_is_folded_on_to_the_head(world: World, projected: int) -> None:
    await world.happen(4)
    world.project(4)
    expected = world.projections.view
    world.project(projected)

    assert await world.query.get(ADA, None, world.execution_id) == expected


async def test_what_this_replica_has_just_committed_is_folded_on_from_memory(world: World) -> None:
    await world.happen(4)
    world.project(4)
    expected = world.projections.view
    world.project(2)
    events = world.log.streams[world.execution_id].events
    world.signal.moved(world.execution_id, 4, events[2:], scope=ACME)

    assert await world.query.get(ADA, None, world.execution_id) == expected
    assert (world.answered_from("memory"), world.answered_from("log")) == (1, 0)


@pytest.mark.parametrize("remembered", [slice(3, 4), slice(2, 3)], ids=["begins too late", "ends too early"])
async def test_what_memory_does_not_reach_is_read(world: World, remembered: slice) -> None:
    await world.happen(4)
    world.project(4)
    expected = world.projections.view
    world.project(2)
    events = world.log.streams[world.execution_id].events[remembered]
    world.signal.moved(world.execution_id, events[-1].stream_version, events, scope=ACME)

    assert await world.query.get(ADA, None, world.execution_id) == expected
    assert (world.answered_from("memory"), world.answered_from("log")) == (0, 1)


async def test_a_row_that_is_current_is_the_answer(world: World) -> None:
    await world.happen(4)
    world.project(4)

    assert await world.query.get(ADA, None, world.execution_id) is world.projections.view
    assert world.answered_from("projection") == 1


async def test_the_row_and_the_head_are_asked_for_at_the_same_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.happen(4)
    world.project(4)
    both = asyncio.Barrier(2)
    find, read = world.projections.get_execution, world.log.read

    async def slow_row(scope: Scope | None, execution_id: int) -> ExecutionView:
        await both.wait()
        return await find(scope, execution_id)

    async def slow_head(scope: Scope | None, execution_id: int, *, limit: int) -> EventPage:
        await both.wait()
        return await read(scope, execution_id, limit=limit)

    monkeypatch.setattr(world.projections, "get_execution", slow_row)
    monkeypatch.setattr(world.log, "read", slow_head)

    async with asyncio.timeout(60):
        view = await world.query.get(ADA, None, world.execution_id)

    assert view.stream_version == 4
    assert world.answered_from("projection") == 1


async def test_who_gives_up_leaves_no_question_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Barrier(3)
    given_up: set[str] = set()

    async def never(name: str) -> None:
        try:
            await asked.wait()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            given_up.add(name)
            raise

    async def row(scope: Scope | None, execution_id: int) -> None:
        await never("row")

    async def head(scope: Scope | None, execution_id: int, *, limit: int) -> None:
        await never("head")

    monkeypatch.setattr(world.projections, "get_execution", row)
    monkeypatch.setattr(world.log, "read", head)
    asking = asyncio.create_task(world.query.get(ADA, None, world.execution_id))
    async with asyncio.timeout(60):
        await asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0)

    assert given_up == {"row", "head"}


async def test_a_row_of_an_ended_execution_needs_no_look_at_the_log(world: World) -> None:
    await world.happen(5)
    world.project(5)
    world.log.streams.clear()

    assert (await world.query.get(ADA, None, world.execution_id)).status == "COMPLETED"


async def test_a_row_whose_state_cannot_be_read_is_folded_from_the_start(world: World) -> None:
    await world.happen(4)
    world.project(3)
    assert world.projections.view is not None
    world.projections.view = replace(world.projections.view, state={"format": 99})

    view = await world.query.get(ADA, None, world.execution_id)

    assert (view.stream_version, view.last_event_type) == (4, "step.exit")


async def test_a_row_of_another_registry_is_not_folded_on(world: World) -> None:
    await world.happen(4)
    world.project(3)
    assert world.projections.view is not None
    other = {**world.projections.view.state, "path": "as another release reads it"}
    world.projections.view = replace(world.projections.view, state=other, upcasters="0" * 64)

    view = await world.query.get(ADA, None, world.execution_id)

    assert (view.stream_version, view.last_event_type) == (4, "step.exit")
    assert view.path != "as another release reads it"
    assert view.upcasters == UPCASTERS.digest


async def test_of_a_row_that_does_not_say_its_registry_only_the_difference_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projector of the release before wrote it; its rows are as long as those of any other."""
    monkeypatch.setattr(query_executions, "MAX_FOLDED_EVENTS", 1)
    await world.happen(4)
    world.project(3)
    assert world.projections.view is not None
    world.projections.view = replace(world.projections.view, upcasters="")

    view = await world.query.get(ADA, None, world.execution_id)

    assert (view.stream_version, view.last_event_type) == (4, "step.exit")


async def test_a_long_history_that_cannot_be_folded_on_is_shown_as_it_was_projected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_executions, "MAX_FOLDED_EVENTS", 3)
    await world.happen(4)
    world.project(3)
    assert world.projections.view is not None
    world.projections.view = replace(world.projections.view, upcasters="0" * 64)

    view = await world.query.get(ADA, None, world.execution_id)

    assert (view.stream_version, view.upcasters) == (3, "0" * 64)


@pytest.mark.parametrize("failure", [Unavailable("gone"), DeadlinePassed("slow")])
async def test_without_a_projector_the_log_answers(world: World, failure: Exception) -> None:
    await world.happen(5)
    world.projections.failure = failure

    assert (await world.query.get(ADA, None, world.execution_id)).status == "COMPLETED"


async def test_a_version_that_is_not_there_yet_is_waited_for(world: World) -> None:
    await world.happen(1)
    asking = asyncio.create_task(world.query.get(ADA, None, world.execution_id, min_version=3))
    await asyncio.sleep(0)

    await world.happen(2)

    assert (await asking).stream_version == 3


async def test_another_tenants_execution_is_not_found(world: World) -> None:
    await world.happen(1)
    stranger = replace(ADA, tenant_id="rival")

    with pytest.raises(NotFound):
        await world.query.get(stranger, None, world.execution_id)
    assert (await world.query.get(SERVICE, None, world.execution_id)).tenant_id == "acme"


async def test_a_listing_is_about_one_tenant_and_known_statuses(world: World) -> None:
    page = await world.query.list(ADA, None, status="FAILED", path="a/b")

    assert page.next_page_token == "acme/FAILED/a/b/50"
    with pytest.raises(InvalidInput):
        await world.query.list(ADA, None, status="DONE")
    with pytest.raises(InvalidInput):
        await world.query.list(ADA, None, size=1001)
    with pytest.raises(InvalidInput):
        await world.query.list(SERVICE, None)
    assert await world.query.list(SERVICE, ACME)
