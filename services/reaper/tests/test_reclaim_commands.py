import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from noetl_core.append import Fence
from noetl_core.children.state import ParkedCall
from noetl_core.errors import (
    AlreadyTerminal,
    KeyTaken,
    NoetlError,
    NotAuthenticated,
    NotFound,
    TooEarly,
    Unavailable,
    VersionConflict,
)
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import (
    Abandonment,
    ClaimOutcome,
    CommandKey,
    Completion,
    Heartbeats,
    ToldChunk,
    Variables,
    Worker,
)
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionPage, ExecutionView, SilentCommand, SilentPage
from noetl_reaper.application import reclaim_commands
from noetl_reaper.application.election import ONLY_SHARD, ROLE, Election
from noetl_reaper.application.reclaim_commands import ReclaimCommands, Sweep
from noetl_reaper.entrypoints.sweep_loop import sweep_regularly
from noetl_reaper.settings import Settings
from noetl_reaper.telemetry import ReaperMetrics
from noetl_servicekit.env import Env, SettingsInvalid
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.shard_ownership import OwnershipSettings, ShardMetrics, ShardOwnership
from noetl_servicekit.tracing import current_traceparent, start_tracing
from noetl_testkit.histories import NOON, TRACE
from noetl_testkit.memory.leases import InMemoryShardLeases
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

FENCE = Fence(role="reaper", shard=0, epoch=2)
SILENT = SilentCommand(
    execution_id=7,
    command_id="c1",
    tenant_id="default",
    organization_id="default",
    step="load",
    attempt=1,
    worker_id="worker-1",
    aggregate_version=3,
    lease_until=NOON,
    trace=TRACE,
)


class Candidates:
    """A projector that lists what the test says."""

    def __init__(self, *commands: SilentCommand) -> None:
        self.commands = commands
        self.failure: NoetlError | None = None
        self.asked = 0

    async def silent_commands(self, *, limit: int = 100, page_token: str = "") -> SilentPage:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        first = int(page_token or 0)
        more = first + limit < len(self.commands)
        return SilentPage(
            commands=self.commands[first : first + limit], next_page_token=str(first + limit) if more else ""
        )

    async def get_execution(
        self, scope: Scope | None, execution_id: int, *, min_version: int = 0, wait_seconds: float = 0.0
    ) -> ExecutionView:
        raise AssertionError("the reaper asks for silent commands only")

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
        raise AssertionError("the reaper asks for silent commands only")


class Planner:
    """A planner that abandons, or refuses as the test says."""

    def __init__(self) -> None:
        self.refusals: dict[str, NoetlError] = {}
        self.abandoned: list[tuple[CommandKey, int, datetime, str]] = []
        self.traces: list[str | None] = []
        self.next_attempt = 2
        self.at_once = self.most_at_once = 0

    async def abandon(
        self,
        key: CommandKey,
        *,
        expected_aggregate_version: int,
        lease_until: datetime,
        reclaimer: str,
        fence: Fence | None = None,
    ) -> Abandonment:
        assert fence == FENCE
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.traces.append(current_traceparent())
        await asyncio.sleep(0)
        self.at_once -= 1
        if key.command_id in self.refusals:
            raise self.refusals[key.command_id]
        self.abandoned.append((key, expected_aggregate_version, lease_until, reclaimer))
        return Abandonment(stream_version=9, next_attempt=self.next_attempt)

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        raise AssertionError("the reaper claims nothing")

    async def complete(
        self,
        worker: Worker,
        key: CommandKey,
        result: Mapping[str, Any],
        *,
        wants_next: bool,
        variables: Variables | None = None,
        logs: PayloadRef | None = None,
    ) -> Completion:
        raise AssertionError("the reaper completes nothing")

    async def park(self, worker: Worker, key: CommandKey, call: ParkedCall, *, timeout_seconds: float) -> int:
        raise AssertionError("the reaper parks nothing")

    async def tell_chunk(self, worker: Worker, key: CommandKey, chunk: ToldChunk) -> bool:
        raise AssertionError("the reaper tells nothing")

    async def heartbeat(self, worker: Worker, keys: Sequence[CommandKey], **_: Any) -> Heartbeats:
        raise AssertionError("the reaper keeps nothing alive")


class Setup:
    def __init__(self, *commands: SilentCommand, concurrency: int = 4) -> None:
        self.candidates = Candidates(*commands)
        self.planner = Planner()
        self.metrics = MetricSet()
        self.lost: list[int] = []
        self.reclaim = ReclaimCommands(
            self.candidates,
            self.planner,
            election=Election(self),
            reclaimer="urn:noetl:reaper:r-0",
            concurrency=concurrency,
            metrics=ReaperMetrics(self.metrics),
        )

    def epoch(self, shard: int) -> int | None:
        return FENCE.epoch

    def fenced(self, shard: int) -> None:
        self.lost.append(shard)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing = start_tracing(service="reaper", instance="r-0", exporters=[exporter])
    yield exporter
    tracing.close()


def silent(number: int) -> SilentCommand:
    return replace(SILENT, command_id=f"c{number}")


async def test_a_silent_command_is_abandoned_at_the_version_at_which_it_was_seen() -> None:
    setup = Setup(SILENT)

    sweep = await setup.reclaim(FENCE)

    assert sweep == Sweep(found=1, abandoned=1, refused=0, failed=0)
    assert setup.planner.abandoned == [(CommandKey(execution_id=7, command_id="c1"), 3, NOON, "urn:noetl:reaper:r-0")]
    assert setup.metrics.value("noetl_reaper_abandoned_total", outcome="issued_again") == 1
    assert setup.metrics.value("noetl_reaper_silent_commands") == 1


async def test_the_last_attempt_is_told_apart() -> None:
    setup = Setup(SILENT)
    setup.planner.next_attempt = 0

    await setup.reclaim(FENCE)

    assert setup.metrics.value("noetl_reaper_abandoned_total", outcome="exhausted") == 1


@pytest.mark.parametrize(
    "refusal",
    [
        VersionConflict(subject="command c1", expected=3, current=4),
        TooEarly("the lease is not over"),
        AlreadyTerminal("7"),
        KeyTaken(key="command/c1/end", event_id="9", stream_version=9),
        NotFound("command", "c1", code="command.not_found"),
    ],
)
async def test_a_refusal_is_counted_and_stops_nobody(refusal: NoetlError) -> None:
    setup = Setup(silent(1), silent(2))
    setup.planner.refusals["c1"] = refusal

    sweep = await setup.reclaim(FENCE)

    assert sweep == Sweep(found=2, abandoned=1, refused=1, failed=0)
    assert setup.metrics.value("noetl_reaper_refused_total", code=refusal.code) == 1


@pytest.mark.parametrize("failure", [Unavailable("no planner"), NotAuthenticated("nobody has this token")])
async def test_a_failure_is_told_apart_from_a_refusal_and_stops_nobody(failure: NoetlError) -> None:
    setup = Setup(silent(1), silent(2))
    setup.planner.refusals["c1"] = failure

    sweep = await setup.reclaim(FENCE)

    assert sweep == Sweep(found=2, abandoned=1, refused=0, failed=1)
    assert setup.metrics.value("noetl_reaper_failures_total", code=failure.code) == 1


async def test_only_so_many_are_dealt_with_at_once() -> None:
    setup = Setup(*(silent(number) for number in range(20)), concurrency=3)

    sweep = await setup.reclaim(FENCE)

    assert sweep.abandoned == 20
    assert setup.planner.most_at_once == 3


async def test_the_abandonment_belongs_to_the_trace_of_its_command(spans: InMemorySpanExporter) -> None:
    setup = Setup(SILENT)

    await setup.reclaim(FENCE)

    (abandon,) = spans.get_finished_spans()
    assert abandon.name == "reaper.abandon"
    assert abandon.context is not None
    assert abandon.parent is not None
    assert f"{abandon.context.trace_id:032x}" == TRACE.split("-")[1]
    assert f"{abandon.parent.span_id:016x}" == TRACE.split("-")[2]
    assert setup.planner.traces == [f"00-{abandon.context.trace_id:032x}-{abandon.context.span_id:016x}-01"]


async def test_those_that_are_refused_do_not_hide_the_ones_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim_commands, "PAGE", 2)
    setup = Setup(silent(1), silent(2), silent(3))
    setup.planner.refusals = {silent(number).command_id: AlreadyTerminal("1") for number in (1, 2)}

    sweep = await setup.reclaim(FENCE)

    assert (sweep.found, sweep.abandoned, sweep.refused) == (3, 1, 2)


async def test_the_loop_sweeps_again_and_again_and_shows_that_it_lives() -> None:
    setup = Setup()
    third = asyncio.Event()
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            third.set()

    task = asyncio.create_task(sweep_regularly(setup.reclaim, elected=lambda: FENCE, every_seconds=0.001, beat=beat))
    await third.wait()
    task.cancel()
    await asyncio.wait({task})

    assert setup.candidates.asked >= 2


async def test_a_projector_that_is_away_is_for_the_supervisor_to_deal_with() -> None:
    setup = Setup()
    setup.candidates.failure = Unavailable("no projector")

    with pytest.raises(Unavailable):
        await sweep_regularly(setup.reclaim, elected=lambda: FENCE, every_seconds=1, beat=lambda: None)


async def test_who_is_not_elected_looks_for_nothing_until_it_is() -> None:
    """Two reapers of one installation: the second goes on where the first one left, and not beside it."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    leases, settings = InMemoryShardLeases(clock=lambda: now), OwnershipSettings.read(Env({}))

    def ownership(name: str) -> ShardOwnership:
        return ShardOwnership(
            leases, settings, role=ROLE, instance=name, address="", metrics=ShardMetrics(MetricSet()), clock=lambda: 0.0
        )

    first, second = ownership("first"), ownership("second")
    await first.renew()
    await second.renew()
    assert (first.epoch(ONLY_SHARD), second.epoch(ONLY_SHARD)) == (1, None)

    setup, beats = Setup(), asyncio.Semaphore(0)
    task = asyncio.create_task(
        sweep_regularly(setup.reclaim, elected=Election(second).fence, every_seconds=0.001, beat=beats.release)
    )
    for _ in range(3):
        await beats.acquire()
    assert setup.candidates.asked == 0

    now += timedelta(seconds=settings.lease_seconds)  # the first is silent
    await second.renew()
    assert second.epoch(ONLY_SHARD) == 2, "what the first does now is not in its name any more"
    for _ in range(3):
        await beats.acquire()
    task.cancel()
    await asyncio.wait({task})
    assert setup.candidates.asked >= 1


def test_settings_have_defaults_and_all_wrong_ones_are_refused_together() -> None:
    environment = {
        "NOETL_API_ADDRESS": "api:1",
        "NOETL_PROJECTOR_ADDRESS": "projector:1",
        "NOETL_PLANNER_ADDRESS": "planner:1",
        "NOETL_TOKEN": "secret",
    }
    settings = Settings.from_env(environment)
    assert (settings.interval_seconds, settings.deadline_seconds, settings.concurrency) == (5.0, 0.5, 16)
    assert "secret" not in repr(settings)

    with pytest.raises(SettingsInvalid) as refusal:
        Settings.from_env({"NOETL_REAPER_INTERVAL_SECONDS": "0"})
    assert len(refusal.value.problems) == 5
