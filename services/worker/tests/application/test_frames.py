"""Frames in the worker's process: what a row costs, how many run at once, and what is left to others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.append import Appended, AppendRequest
from noetl_core.canonical import MAX_DEPTH, JsonValue, decode
from noetl_core.errors import Unavailable
from noetl_core.fold import empty
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import ClaimOutcome, CommandKey, GrantedCommand, Heartbeats, Variables, Worker
from noetl_core.ports.frames import FrameBeats, FrameClaim, FrameCommit, FrameKey, GrantedFrame, StageSlot
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.rows import FrameRows
from noetl_core.surfaces.shapes import Surface
from noetl_core.surfaces.surface_fold import SurfaceFold
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.conformance import Case
from noetl_testkit.heartbeats import tell_of_all
from noetl_testkit.in_memory_runtime import InMemoryRuntime
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.until import until
from noetl_worker.application.captured_output import StoreOutput
from noetl_worker.application.command_end import CommandEnd, failed_result
from noetl_worker.application.frame_names import FrameNames
from noetl_worker.application.frame_work import WorkOfPlanners, slot_key
from noetl_worker.application.iteration import Iteration
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.run_frame import RETRY_SECONDS, RunFrame, within_bytes
from noetl_worker.application.slots import Slots
from noetl_worker.telemetry import WorkerMetrics

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
STEP = "workflow:\n- {step: s, loop: {in: [], iterator: n, spec: {mode: MODE, frame: {}}}, tool: {kind: noop}}\n"
WORKER = Worker(worker_id="w")
PLACE = ResultPlace(tenant_id="t", organization_id="o", execution_id=1, step="s")


def granted(count: int, **bounds: Any) -> GrantedCommand:
    rows = FrameRows(
        stage_id="1-s",
        loop_id="l",
        index=0,
        slot=0,
        start=100,
        stop=100 + count,
        total=1000,
        bounds=FrameBounds(max_rows=count, **bounds),
        values=tuple(range(count)),
    )
    return GrantedCommand(
        key=CommandKey(execution_id=1, command_id="1-s-0/1"),
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        step="s",
        activation=1,
        attempt=1,
        lease_seconds=120,
        idempotency_key="1/s/1",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
        frame=rows,
    )


class Rows:
    """Stands for the pipeline, the names and the items of a step: each row takes a second, and gives itself."""

    def __init__(self) -> None:
        self.now = 0.0
        self.running = self.most = 0
        self.keys: list[str] = []
        self.broken = -1
        """The row that gives what nobody can write."""
        self.trouble: list[Exception] = []
        self.payloads = InMemoryPayloadStore()

    async def __call__(self, command: GrantedCommand, step: Any, names: Any, *, iteration: Any, **_: Any) -> Any:
        if self.trouble:
            raise self.trouble.pop()
        self.running += 1
        self.most = max(self.most, self.running)
        self.keys.append(names["idempotency_key"])
        for _unused in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        self.now += 1.0
        return PipelineEnd(outcome=Outcome(data="\ud800" if iteration.index == self.broken else iteration.value))

    async def names(self, command: GrantedCommand, playbook: Any) -> dict[str, object]:
        return {"ctx": {}}

    async def rows(self, frame: FrameRows) -> list[Any]:
        return list(frame.values or ())

    async def store(self, place: ResultPlace, values: Any) -> Variables:
        return Variables(values=values)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def run(self, command: GrantedCommand, mode: str = "parallel") -> dict[str, Any]:
        playbook, _ = parse_playbook(HEAD + STEP.replace("MODE", mode))
        this: Any = self
        persist = PersistBeforeEmit(self.payloads, ArrowTables(), sleep=self.sleep)
        run = RunFrame(
            names=self.names,  # type: ignore[arg-type]  # as much of it as is asked
            pipeline=this,
            persist=persist,
            items=this,
            store_output=StoreOutput(persist),
            store_variables=self.store,
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        end = await run(command, playbook, PLACE)
        return dict(end.result)

    async def outcomes(self, result: dict[str, Any]) -> Any:
        ref = PayloadRef(**{name: result["reference"][name] for name in ("uri", "sha256", "media_type", "bytes")})
        return decode(await self.payloads.get(ref))


async def test_outcomes_of_all_rows_are_one_payload_under_keys_of_their_own() -> None:
    rows = Rows()
    result = await rows.run(granted(3))

    assert await rows.outcomes(result) == [0, 1, 2]
    assert len(rows.payloads.objects) == 1
    assert rows.keys == ["1/s/1/100", "1/s/1/101", "1/s/1/102"]
    counts = dict(result["context"]["frame"])
    assert counts.pop("metrics")["rows"] == {"ok": 3, "break": 0, "error": 0}
    assert counts == {"stop": 103, "success": 3, "failed": 0, "breaks": 0, "first_error": None}


async def test_no_row_begins_after_the_seconds_of_a_frame_and_the_first_one_always_does() -> None:
    assert (await Rows().run(granted(10, max_seconds=3.5)))["context"]["frame"]["stop"] == 104
    assert (await Rows().run(granted(10, max_seconds=0.5)))["context"]["frame"]["stop"] == 101


@pytest.mark.parametrize("at_once", [1, 4])
async def test_as_many_rows_run_at_once_as_the_policy_says(at_once: int) -> None:
    rows = Rows()
    await rows.run(granted(12, max_seconds=1000.0, row_concurrency=at_once))
    assert rows.most == at_once


async def test_trouble_that_is_not_a_rows_own_is_tried_again_for_that_row_alone() -> None:
    rows = Rows()
    rows.trouble = [Unavailable("away")]
    result = await rows.run(granted(3))
    assert result["context"]["frame"]["success"] == 3
    assert len(rows.keys) == 3


async def test_trouble_that_lasts_is_the_outcome_of_its_row() -> None:
    rows = Rows()
    rows.trouble = [Unavailable("away")] * (len(RETRY_SECONDS) + 1)
    result = await rows.run(granted(3))
    assert result["context"]["frame"]["failed"] == 1
    assert result["context"]["frame"]["first_error"] == {"index": 100, "code": "unavailable", "message": "away"}


async def test_a_row_that_cannot_be_written_fails_alone() -> None:
    rows = Rows()
    rows.broken = 101
    result = await rows.run(granted(3))
    first, broken, last = await rows.outcomes(result)
    assert (first, last, broken["error"]["code"]) == (0, 2, "RESULT_NOT_JSON")


def test_rows_beyond_the_bytes_of_a_frame_are_left() -> None:
    assert within_bytes(["aaaa", "bbbb", "cccc"], 12) == ["aaaa", "bbbb"]
    assert within_bytes(["aaaa"], 1) == ["aaaa"]
    deepest: JsonValue = 1
    for _ in range(MAX_DEPTH):
        deepest = [deepest]
    assert within_bytes([deepest, 2], 10_000) == [deepest, 2]


class Counting(InMemoryRuntime):
    """Counts what a run asks of the log and of the payload store."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        append, get, put, read = self.log.append, self.payloads.get, self.payloads.put, self.log.read

        async def counted_append(request: AppendRequest) -> tuple[Appended, ...]:
            self.calls += 1
            return await append(request)

        async def counted_get(ref: PayloadRef) -> bytes:
            self.calls += 1
            return await get(ref)

        async def counted_put(**of: Any) -> PayloadRef:
            self.calls += 1
            return await put(**of)

        async def counted_read(*what: Any, **of: Any) -> Any:
            self.calls += 1
            return await read(*what, **of)

        self.log.append, self.log.read = counted_append, counted_read  # type: ignore[method-assign]
        self.payloads.get, self.payloads.put = counted_get, counted_put  # type: ignore[method-assign]


async def test_no_row_costs_an_event_a_query_or_a_call() -> None:
    found: list[tuple[int, int]] = []
    for count in (10, 400):
        runtime = Counting()
        document = HEAD + (
            "workflow:\n- step: s\n"
            f'  loop: {{in: "{{{{ range({count}) | list }}}}", spec: {{frame: {{max_rows: {count}}}}}}}\n'
            '  tool: {kind: noop, result: "{{ iter.item }}"}\n'
        )
        came = await runtime.run(Case(name="rows", rule="§7.2", document=document, expect={}))
        assert came.results["s"]["results"] == list(range(count))
        found.append((len(came.events), runtime.calls))

    assert found[0] == found[1]


MEASURED = """workflow:
- step: s
  loop: {in: "{{ range(6) | list }}", iterator: n, spec: {engine: inline, frame: {max_rows: 3}}}
  tool:
  - {name: take, kind: noop, result: "{{ iter.n }}"}
  - name: give
    kind: noop
    result: "{{ take + 1 }}"
    spec: {policy: {rules: [{when: "{{ iter.n == 5 }}", then: {do: break}}]}}
"""


async def test_a_commit_tells_how_rows_ended_and_where_their_time_went_and_rows_of_frames_keep_it() -> None:
    came = await InMemoryRuntime().run(Case(name="told", rule="R080", document=HEAD + MEASURED, expect={}))

    assert not came.problems
    rows = SurfaceFold(empty(came.events[0].envelope.execution_id))
    rows.add_all(came.events)
    frames: list[Any] = sorted(rows.changed()[Surface.FRAMES].values(), key=lambda row: int(str(row["frame_index"])))
    told = [row["cursor"]["metrics"] for row in frames if row["step"] == "s"]
    assert [metrics["rows"] for metrics in told] == [
        {"ok": 3, "break": 0, "error": 0},
        {"ok": 2, "break": 1, "error": 0},
    ]
    for metrics in told:
        assert {name: (spent["kind"], spent["calls"]) for name, spent in metrics["tasks"].items()} == {
            "take": ("noop", 3),
            "give": ("noop", 3),
        }
        for spent in metrics["tasks"].values():
            assert spent["task_ms"] > 0
            assert spent["render_ms"] > 0
            assert spent["tool_ms"] >= 0


class Planners:
    """Answers for a planner: one frame, which is told of when its policy says."""

    def __init__(self) -> None:
        self.heard: list[FrameKey] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def claim_frames(self, worker: Worker, slots: Sequence[StageSlot]) -> tuple[FrameClaim, ...]:
        command = granted(2, heartbeat_seconds=30.0)
        assert command.frame is not None
        frame = GrantedFrame(
            key=FrameKey(execution_id=1, frame_id="1-s-0", attempt=1), step=command, rows=command.frame
        )
        return tuple(FrameClaim(slot=slot, frame=frame) for slot in slots)

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        return tuple(ClaimOutcome(key=key, refusal="command.held") for key in keys)

    async def heartbeat(self, worker: Worker, keys: Sequence[CommandKey], **_: Any) -> Heartbeats:
        return Heartbeats(lost=frozenset(keys))

    async def heartbeat_frames(self, worker: Worker, keys: Sequence[FrameKey], **_: Any) -> FrameBeats:
        self.heard += keys
        await self.answers.wait()
        return FrameBeats()

    async def fail_frame(self, worker: Worker, key: FrameKey, *what: Any, **of: Any) -> FrameCommit:
        return FrameCommit(stream_version=1)


async def test_commands_and_frames_are_claimed_and_kept_together() -> None:
    planners = Planners()
    both: Any = planners
    work = WorkOfPlanners(both, both)
    command, slot = CommandKey(execution_id=1, command_id="c"), slot_key(1, stage_id="1-s", slot=0)
    refused, claimed = await work.claim(WORKER, [command, slot])

    assert refused.refusal == "command.held"
    assert claimed.command is not None
    frame = claimed.command.key
    assert frame == CommandKey(execution_id=1, command_id="1-s-0/1")
    beats = await work.heartbeat(WORKER, [command, frame])
    assert (beats.lost, planners.heard) == (
        frozenset({command}),
        [FrameKey(execution_id=1, frame_id="1-s-0", attempt=1)],
    )


class Workplace:
    """Slots that run the frame of such planners, until they are told to end."""

    def __init__(self) -> None:
        self.planners = Planners()
        self.now = 0.0
        self.ends = asyncio.Event()
        both: Any = self.planners
        work = WorkOfPlanners(both, both)
        metrics = WorkerMetrics(MetricSet())
        self.slots = Slots(work, self._run, worker=WORKER, size=2, metrics=metrics, clock=lambda: self.now)

    async def _run(self, command: GrantedCommand) -> CommandEnd:
        await self.ends.wait()
        return CommandEnd(result=failed_result(Unavailable("ended")))

    async def claim(self) -> None:
        await self.slots.claim([slot_key(1, stage_id="1-s", slot=0)])

    async def heard_at(self, now: float) -> int:
        """How often planners have heard of the frame when this heartbeat was over."""
        self.now = now
        await tell_of_all(self.slots)
        return len(self.planners.heard)


async def test_a_frame_is_not_heard_of_before_its_policy_says() -> None:
    place = Workplace()
    await place.claim()
    assert [await place.heard_at(now) for now in (1.0, 29.0, 31.0, 31.0, 60.0, 61.0)] == [0, 0, 1, 1, 1, 2]


async def test_a_frame_may_be_delivered_while_its_heartbeat_is_on_the_way() -> None:
    place = Workplace()
    await place.claim()
    place.planners.answers.clear()
    beating = asyncio.create_task(place.heard_at(31.0))
    await until(lambda: place.planners.heard)
    place.ends.set()
    await until(lambda: place.slots.busy == 0)
    place.planners.answers.set()

    assert await beating == 1
    assert await place.heard_at(100.0) == 1


async def test_a_frame_that_is_granted_again_is_heard_of_no_later() -> None:
    place = Workplace()
    await place.claim()
    place.now = 29.0
    await place.claim()
    assert await place.heard_at(31.0) == 1


def test_rows_share_what_they_see_of_their_frame_and_nothing_of_each_other() -> None:
    frame = granted(2).frame
    assert frame is not None
    shared = FrameNames.of(frame, ["a", "b"], iterator="n")
    first, second = (
        Iteration(iterator="n", value=value, index=100 + number, total=1000, frame=shared.of_row(number))
        for number, value in enumerate(["a", "b"])
    )
    first.scope["set"] = "by the first"
    inner = Iteration(iterator="m", value=1, index=0, total=1, outer=second)

    seen: list[Any] = [one.names() for one in (first, second, inner)]
    assert [names["_frame_row_index"] for names in seen] == [0, 1, 1]
    assert [names["iter"]["_frame_row_index"] for names in seen] == [0, 1, 1]
    assert ["set" in names["iter"] for names in seen] == [True, False, False]
    assert all(names["frame"]["rows"] == names["iter"]["n_rows"] == ["a", "b"] for names in seen)
    assert "_frame_row_index" not in shared.beside
