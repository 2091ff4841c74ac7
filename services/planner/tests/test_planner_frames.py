"""Stages of frames over the planner's own turns: what is told of them, and who may have which frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from noetl_core.append import END_KEY
from noetl_core.canonical import JsonObject, encode
from noetl_core.catalog import to_draft
from noetl_core.errors import AlreadyTerminal, FrameAlreadyTerminal, FrameHasRows, InvalidInput, LeaseLost, NoetlError
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.payloads import refer_to
from noetl_core.ports.commands import Variables, Worker
from noetl_core.ports.frames import CommittedRows, FrameClaim, FrameCommit, GrantedFrame, StageSlot
from noetl_core.ports.steering import SteerAction
from noetl_core.stages.events import FrameDispatched, FrameFailed, StageOpened
from noetl_core.stages.shard_events import ShardDone, ShardEnqueued, ShardFailed
from noetl_core.state_json import decode_state, encode_state
from noetl_planner.application.backlog import backlog_of, frame_backlog_of
from noetl_planner.application.frame_leases import leases_that_ended
from noetl_planner.entrypoints.head_sweep import repeated_message
from noetl_testkit.planning import WORKER, Planning
from noetl_testkit.until import until

OTHER = Worker(worker_id="bob")

ROWS = """
workflow:
- step: each
  loop: {in: "{{ range(n) | list }}", spec: {mode: MODE, max_in_flight: WIDTH, engine: inline, frame: FRAME}}
  tool: {kind: noop}
  next: {arcs: [{step: after, when: "{{ output.data.status != 'error' }}"}]}
- {step: after, tool: {kind: noop}}
"""


def rows(*, mode: str = "parallel", width: int = 2, frame: str = "{max_rows: 4}") -> str:
    return ROWS.replace("MODE", mode).replace("WIDTH", str(width)).replace("FRAME", frame)


def stored(**context: Any) -> dict[str, Any]:
    reference = {"type": "object_store", "ref_id": "r", "uri": "noetl://r"}
    return {"status": "ok", "reference": reference, "parent_ref": None, "context": context}


def failure(*, retryable: bool = False) -> dict[str, Any]:
    error = {"kind": "unknown", "code": "BAD", "message": "no", "retryable": retryable}
    return {"status": "error", "reference": None, "parent_ref": None, "context": {"error": error}}


class Frames:
    """The worker's side of frames, by hand."""

    def __init__(self, planning: Planning) -> None:
        self.planning = planning

    @property
    def stage(self) -> Any:
        return self.planning.state.execution.stages["each"]

    async def claims(self, slot: int = 0, *, worker: Worker = WORKER) -> FrameClaim:
        wanted = StageSlot(execution_id=self.planning.execution_id, stage_id=self.stage.stage_id, slot=slot)
        (claim,) = await self.planning.actors.claim_frames(worker, [wanted])
        return claim

    async def claim(self, slot: int = 0, *, worker: Worker = WORKER) -> GrantedFrame:
        claim = await self.claims(slot, worker=worker)
        assert claim.frame is not None, claim.refusal
        return claim.frame

    async def commit(
        self,
        frame: GrantedFrame,
        *,
        worker: Worker = WORKER,
        stop: int | None = None,
        failed: int = 0,
        wants_next: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> FrameCommit:
        stop = frame.rows.stop if stop is None else stop
        error = {"index": frame.rows.start, "code": "BAD", "message": "no"} if failed else None
        outcome = CommittedRows(
            result=stored(), stop=stop, success=stop - frame.rows.start - failed, failed=failed, first_error=error
        )
        return await self.planning.actors.commit_frame(
            worker, frame.key, outcome, wants_next=wants_next, variables=Variables(values=variables or {})
        )

    async def run_out(self, frame: GrantedFrame | None, *, failed: int = 0) -> int:
        """Commit what is handed over until nothing is; returns how many frames that were."""
        count = 0
        while frame is not None:
            frame = (await self.commit(frame, failed=failed)).next
            count += 1
        return count


async def begun(yaml: str, **workload: Any) -> Frames:
    return Frames(await Planning().start(yaml, **workload))


def told(planning: Planning) -> Counter[str]:
    return Counter(name for name in planning.types() if name.startswith(("frame.", "stage.", "loop.")))


async def test_a_frame_is_three_events_and_a_stage_two_whatever_the_rows() -> None:
    frames = await begun(rows(), n=18)

    first, second = await frames.claim(0), await frames.claim(1)
    assert (first.rows.start, first.rows.stop, second.rows.start, second.rows.stop) == (0, 4, 4, 8)
    assert first.rows.values == (0, 1, 2, 3)
    await frames.run_out(first)
    await frames.run_out(second)

    counts = told(frames.planning)
    assert counts == {
        "stage.opened": 1,
        "frame.dispatched": 5,
        "frame.started": 5,
        "frame.committed": 5,
        "stage.closed": 1,
        "loop.done": 1,
    }
    assert frames.planning.entered() == ["each", "after"]
    loop = frames.planning.state.execution.loops["each"]
    assert (loop.success, loop.failed, loop.status) == (18, 0, "ok")


async def test_a_commit_hands_over_the_next_frame_in_one_append() -> None:
    frames = await begun(rows(), n=18)
    commits: list[list[str]] = []
    frames.planning.log.on_commit.append(
        lambda events: commits.append([placed.stored.envelope().event_type for placed in events])
    )
    await frames.commit(await frames.claim(0))

    assert commits == [
        ["frame.dispatched", "frame.started"],
        ["frame.committed", "frame.dispatched", "frame.started"],
    ]


REDUCED = """
workflow:
- step: each
  loop: {in: "{{ range(n) | list }}", spec: {mode: parallel, engine: inline, frame: {max_rows: 4}}}
  tool: {kind: noop}
  next: {arcs: [{step: total}]}
- {step: total, reduce: {from: each}, tool: {kind: noop, result: "{{ partitions }}"}}
"""


async def test_a_stage_that_reduces_another_names_it_as_its_parent() -> None:
    frames = await begun(REDUCED, n=4)
    await frames.run_out(await frames.claim(0))

    opened = [one.content for one in frames.planning.events() if isinstance(one.content, StageOpened)]
    parent, reduce = opened
    assert (parent.parent_stage_id, parent.kind) == (None, "loop")
    assert (reduce.parent_stage_id, reduce.kind) == (parent.stage_id, "reduce")
    assert frames.planning.state.execution.stages["total"].parent_stage_id == parent.stage_id


async def test_a_stage_tells_the_event_that_it_was_opened_for_also_if_that_is_appended_with_it() -> None:
    frames = await begun(REDUCED, n=4)
    await frames.run_out(await frames.claim(0))

    events = frames.planning.events()
    opened = [one for one in events if isinstance(one.content, StageOpened)]
    causes = [events[one.decided_through - 1].envelope for one in opened]
    assert [cause.event_type for cause in causes] == ["playbook.initialized", "frame.committed"]
    assert [one.envelope.parent_event_id for one in opened] == [str(cause.event_id) for cause in causes]
    stages = frames.planning.state.execution.stages
    assert [stages[name].parent_event_id for name in ("each", "total")] == [cause.event_id for cause in causes]


async def test_an_empty_collection_opens_and_closes_its_stage() -> None:
    frames = await begun(rows(), n=0)

    assert told(frames.planning) == {"stage.opened": 1, "stage.closed": 1, "loop.done": 1}
    assert frames.planning.entered() == ["each", "after"]


async def test_a_slot_has_one_frame_at_a_time_and_a_stage_as_many_as_it_has_slots() -> None:
    frames = await begun(rows(), n=18)
    held = await frames.claim(0)

    assert (await frames.claims(0, worker=OTHER)).refusal == "frame.held"
    assert (await frames.claim(0)).key == held.key
    assert (await frames.claims(2)).refusal == "stage.no_such_slot"
    await frames.claim(-1)
    assert (await frames.claims(-1)).refusal == "stage.full"
    assert told(frames.planning)["frame.dispatched"] == 2


async def test_a_repeated_commit_is_answered_with_the_frame_that_came_with_it() -> None:
    frames = await begun(rows(), n=18)
    first = await frames.claim(0)
    answer = await frames.commit(first)
    again = await frames.commit(first)

    assert answer.next is not None and again.next is not None
    assert again.next.key == answer.next.key
    assert told(frames.planning)["frame.committed"] == 1


async def test_a_repeated_commit_of_the_last_frame_is_no_error() -> None:
    frames = await begun(rows(), n=3)
    last = await frames.claim(0)
    answer = await frames.commit(last)

    assert (await frames.commit(last)).stream_version == answer.stream_version
    with pytest.raises(FrameAlreadyTerminal, match=r"frame\.committed at version"):
        await frames.commit(last, worker=OTHER)


async def test_rows_that_are_left_go_to_a_follow_up_frame() -> None:
    frames = await begun(rows(), n=10)
    first = await frames.claim(0)
    answer = await frames.commit(first, stop=1)

    assert answer.next is not None
    assert (answer.next.rows.start, answer.next.rows.stop, answer.next.rows.index) == (1, 4, 1)
    await frames.run_out(answer.next)
    assert frames.planning.state.execution.loops["each"].success == 10


async def test_counts_that_are_not_those_of_the_rows_are_refused_and_change_nothing() -> None:
    frames = await begun(rows(), n=10)
    frame = await frames.claim(0)
    with pytest.raises(InvalidInput, match="not these outcomes"):
        await frames.commit(frame, stop=7)
    with pytest.raises(InvalidInput, match="where its outcomes are stored"):
        CommittedRows(result={"status": "ok", "reference": None}, stop=4, success=4, failed=0)
    assert told(frames.planning)["frame.committed"] == 0


async def test_a_silent_frame_is_abandoned_after_its_lease_and_offered_again_with_the_same_rows() -> None:
    frames = await begun(rows(frame="{max_rows: 4, lease_seconds: 20}"), n=10)
    planning = frames.planning
    lost = await frames.claim(0)
    assert (await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)).passed == 0

    planning.pass_time(21)
    reaper = "urn:noetl:reaper:r-0"
    passed = await planning.actors.pass_deadlines(planning.execution_id, through=planning.now, reclaimer=reaper)
    assert passed.passed == 1
    (given_up,) = [one for one in planning.events() if one.envelope.event_type == "frame.abandoned"]
    assert given_up.envelope.meta["reclaimer"] == reaper
    found = await frames.claim(1, worker=OTHER)

    assert (found.key.frame_id, found.key.attempt, found.rows.start) == (lost.key.frame_id, 2, 0)
    with pytest.raises(LeaseLost, match="bob"):
        await frames.commit(lost)
    assert told(planning)["frame.abandoned"] == 1


async def test_a_heartbeat_keeps_a_frame() -> None:
    frames = await begun(rows(frame="{max_rows: 4, lease_seconds: 20}"), n=10)
    planning = frames.planning
    frame = await frames.claim(0)
    planning.pass_time(15)
    assert not (await planning.actors.heartbeat_frames(WORKER, [frame.key])).lost
    planning.pass_time(15)
    assert (await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)).passed == 0
    assert (await planning.actors.heartbeat_frames(OTHER, [frame.key])).lost == {frame.key}


async def test_an_abandonment_of_a_frame_that_was_heard_of_is_refused() -> None:
    frames = await begun(rows(frame="{max_rows: 4, lease_seconds: 20}"), n=10)
    planning = frames.planning
    frame = await frames.claim(0)
    seen = frames.stage.frames[frame.key.frame_id]
    await planning.actors.heartbeat_frames(WORKER, [frame.key])
    planning.pass_time(60)
    with pytest.raises(NoetlError):
        await planning.actors.abandon_frame(
            frame.key,
            expected_aggregate_version=seen.aggregate_version,
            lease_until=seen.lease_until,
            reclaimer="urn:test",
        )


async def test_rows_fail_when_the_attempts_at_their_frame_are_used_up() -> None:
    frames = await begun(rows(frame="{max_rows: 4, lease_seconds: 20, max_attempts: 2}"), n=4)
    planning = frames.planning
    for _ in range(2):
        await frames.claim(0)
        planning.pass_time(21)
        await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)

    loop = planning.state.execution.loops["each"]
    assert (loop.success, loop.failed, loop.status) == (0, 4, "error")
    assert loop.first_error is not None and loop.first_error["code"] == "frame.attempts_exhausted"
    assert told(planning)["loop.done"] == 1


@pytest.mark.parametrize(("retryable", "attempts"), [(True, 3), (False, 1)])
async def test_a_failed_frame_is_tried_again_only_if_that_may_help(retryable: bool, attempts: int) -> None:
    frames = await begun(rows(), n=4)
    frame: GrantedFrame | None = await frames.claim(0)
    while frame is not None:
        answer = await frames.planning.actors.fail_frame(
            WORKER, frame.key, failure(), retryable=retryable, wants_next=True
        )
        frame = answer.next

    assert told(frames.planning)["frame.failed"] == attempts
    assert frames.planning.state.execution.loops["each"].failed == 4


async def test_a_failure_budget_counts_rows() -> None:
    yaml = rows().replace("engine: inline,", "engine: inline, failure_budget: {count: 2},")
    frames = await begun(yaml, n=8)
    first = await frames.claim(0)
    await frames.run_out((await frames.commit(first, failed=2)).next)

    assert frames.planning.state.execution.loops["each"].status == "partial"
    assert frames.planning.entered() == ["each", "after"]


async def test_with_fail_fast_no_further_frame_is_dispatched() -> None:
    yaml = rows(mode="sequential").replace(
        "  tool: {kind: noop}\n  next", "  spec: {policy: {failure: {mode: fail_fast}}}\n  tool: {kind: noop}\n  next"
    )
    frames = await begun(yaml, n=40)
    answer = await frames.commit(await frames.claim(0), failed=4)

    assert answer.next is None
    assert frames.planning.types()[-1] == "playbook.failed"
    assert told(frames.planning)["stage.closed"] == 1


async def test_frames_of_a_sequential_loop_see_what_earlier_ones_have_set() -> None:
    frames = await begun(rows(mode="sequential"), n=8)
    answer = await frames.commit(await frames.claim(0), variables={"seen": 1})

    assert answer.next is not None
    assert answer.next.step.variables.values == {"seen": 1}


async def test_frames_of_a_parallel_loop_do_not_see_what_others_have_set() -> None:
    frames = await begun(rows(), n=8)
    answer = await frames.commit(await frames.claim(0), variables={"seen": 1})

    assert answer.next is not None
    assert answer.next.step.variables.values == {}
    assert frames.planning.state.execution.variables == {"seen": 1}


async def test_a_paused_stage_gives_out_no_frame_and_goes_on_when_it_is_resumed() -> None:
    frames = await begun(rows(), n=12)
    planning = frames.planning
    frame = await frames.claim(0)
    await planning.actors.steer(planning.execution_id, SteerAction.PAUSE, by="me", reason="")

    assert (await frames.commit(frame)).next is None
    assert (await frames.claims(0)).refusal == "execution.paused"
    hinted = len(planning.log.hints)
    await planning.actors.steer(planning.execution_id, SteerAction.RESUME, by="me", reason="")
    assert len(planning.log.hints) == hinted + 2
    await frames.run_out(await frames.claim(0))
    assert planning.entered() == ["each", "after"]


async def test_a_stage_that_ended_while_paused_is_left_when_it_is_resumed() -> None:
    frames = await begun(rows(), n=4)
    planning = frames.planning
    frame = await frames.claim(0)
    await planning.actors.steer(planning.execution_id, SteerAction.PAUSE, by="me", reason="")
    await frames.commit(frame)
    assert planning.entered() == ["each"]
    await planning.actors.steer(planning.execution_id, SteerAction.RESUME, by="me", reason="")
    assert planning.entered() == ["each", "after"]


async def test_a_step_that_takes_too_long_closes_its_stage_and_its_frames_are_lost() -> None:
    yaml = rows().replace("  tool: {kind: noop}\n  next", "  spec: {timeout: 60}\n  tool: {kind: noop}\n  next")
    frames = await begun(yaml, n=12)
    planning = frames.planning
    frame = await frames.claim(0)
    planning.pass_time(61)
    await planning.actors.heartbeat_frames(WORKER, [frame.key])
    await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)

    counts = told(planning)
    assert (counts["stage.closed"], counts["loop.done"]) == (1, 1)
    assert (await planning.actors.heartbeat_frames(WORKER, [frame.key])).lost == {frame.key}
    with pytest.raises((FrameAlreadyTerminal, AlreadyTerminal)):
        await frames.commit(frame)


async def test_slots_that_are_left_free_are_hinted_once() -> None:
    frames = await begun(rows(width=3), n=100)
    planning = frames.planning
    slots = [hint.message_id.rpartition("/")[2] for hint in planning.log.hints]
    assert slots == ["0", "1", "2"]

    await frames.commit(await frames.claim(1), wants_next=False)
    assert [hint.message_id.rpartition("/")[2] for hint in planning.log.hints[3:]] == ["1"]


async def test_a_slot_that_comes_to_wait_again_is_hinted_again_as_something_new() -> None:
    frames = await begun(rows(width=1), n=100)
    planning = frames.planning
    (before,) = planning.actors.hints_for_claimable()
    for action in (SteerAction.PAUSE, SteerAction.RESUME):
        await planning.actors.steer(planning.execution_id, action, by="ada", reason="")
    (after,) = planning.actors.hints_for_claimable()

    first, again, later = repeated_message(before, 1), repeated_message(after, 1), repeated_message(after, 2)
    assert first.body == again.body == later.body
    assert len({first.message_id, again.message_id, later.message_id}) == 3


async def test_another_planner_goes_on_from_the_log() -> None:
    frames = await begun(rows(), n=18)
    first = await frames.claim(0)
    second = (await frames.commit(first)).next
    await frames.planning.replace_planner()

    assert second is not None
    await frames.run_out(second)
    assert frames.planning.entered() == ["each", "after"]
    assert told(frames.planning)["frame.committed"] == 5


async def test_state_is_written_and_read_without_loss() -> None:
    frames = await begun(rows(frame="{max_rows: 4, lease_seconds: 20}"), n=40)
    planning = frames.planning
    await frames.claim(1)
    planning.pass_time(21)
    await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)
    await frames.commit(await frames.claim(0), stop=2)

    assert decode_state(encode_state(planning.state)) == planning.state


async def test_templates_of_a_policy_are_rendered_when_the_stage_opens() -> None:
    frames = await begun(rows(frame='{max_rows: "{{ size }}"}'), n=18, size=9)
    assert (await frames.claim(0)).rows.stop == 9


async def test_a_policy_that_is_none_fails_the_step() -> None:
    frames = await begun(rows(frame='{max_rows: "{{ size }}"}'), n=18, size="many")
    planning = frames.planning
    await until(lambda: planning.types()[-1] == "playbook.failed")
    error = planning.state.execution.error
    assert error is not None and error["code"] == "frame.invalid_policy"
    assert told(planning) == {"loop.done": 1}


async def test_state_does_not_grow_with_the_frames_behind_it() -> None:
    frames = await begun(rows(frame="{max_rows: 50}"), n=20_000)
    planning = frames.planning
    await planning.run("each:evaluate_loop", _collection(20_000))  # the planner itself never has the items
    sizes: list[int] = []
    frame: GrantedFrame | None = await frames.claim(0)
    while frame is not None:
        frame = (await frames.commit(frame)).next
        if frame is not None and frame.rows.index % 100 == 50:
            sizes.append(len(encode_state(planning.state)))

    assert told(planning)["frame.committed"] == 400
    assert max(sizes) - min(sizes) < 200


def _collection(count: int) -> dict[str, Any]:
    """What a worker answers that has stored the items of a loop."""
    ref = refer_to(encode([0]), tenant_id="t", organization_id="o", media_type="application/json").to_json()
    answers = {"loop/in": {"ref": ref, "type": "list", "count": count}, "loop/max_in_flight": {"is": 2}}
    return {"status": "ok", "reference": None, "parent_ref": None, "context": {"evaluation": answers}}


async def test_a_stage_is_closed_with_an_execution_that_somebody_ends() -> None:
    frames = await begun(rows(), n=12)
    planning = frames.planning
    frame = await frames.claim(0)
    cancelled = ExecutionCancelled(reason="enough", cancelled_by="me")
    await planning.append(cancelled, key=END_KEY)
    await until(lambda: told(planning)["loop.done"] == 1)

    assert told(planning)["stage.closed"] == 1
    assert (await planning.actors.heartbeat_frames(WORKER, [frame.key])).lost == {frame.key}
    assert (await frames.claims(1)).refusal == "execution.already_terminal"


CURSOR = """
workflow:
- step: each
  loop:
    cursor: {kind: postgres, auth: db, claim: "SELECT 1 LIMIT {{ __frame_max_rows }}"}
    spec: {max_in_flight: WIDTH, engine: inline, frame: {max_rows: 4, lease_seconds: 20, max_attempts: 2}}
  tool: {kind: noop}
  next: {arcs: [{step: after, when: "{{ output.data.processed >= 0 and output.status == 'ok' }}"}]}
- {step: after, tool: {kind: noop}}
"""


class CursorFrames(Frames):
    """The worker's side of frames whose rows it claims itself."""

    async def found(self, frame: GrantedFrame, count: int, *, worker: Worker = WORKER) -> GrantedFrame:
        """Tell the rows of a frame; returns it as another attempt would get it."""
        ref = refer_to(encode([count]), tenant_id="t", organization_id="o", media_type="application/json")
        start = await self.planning.actors.start_frame(worker, frame.key, ref, row_count=count)
        told = replace(frame.rows, start=start, stop=start + count, collection=ref, claims=False)
        return replace(frame, rows=told)

    async def nothing(self, frame: GrantedFrame) -> FrameCommit:
        """Tell that there were no rows."""
        empty = CommittedRows(result={**stored(), "reference": None}, stop=0, success=0, failed=0)
        return await self.planning.actors.commit_frame(WORKER, frame.key, empty, wants_next=True)


async def cursor(width: int = 1, *, fail_fast_over: str = "") -> CursorFrames:
    yaml = CURSOR.replace("WIDTH", str(width))
    if fail_fast_over:
        yaml = yaml.replace("engine: inline,", f"engine: inline, failure_budget: {{{fail_fast_over}}},").replace(
            "  tool: {kind: noop}\n  next",
            "  spec: {policy: {failure: {mode: fail_fast}}}\n  tool: {kind: noop}\n  next",
        )
    return CursorFrames(await Planning().start(yaml))


async def test_frames_of_a_cursor_exist_before_their_rows_and_have_them_before_the_work() -> None:
    frames = await cursor()
    first = await frames.claim(0)
    assert first.rows.claims
    second = (await frames.commit(await frames.found(first, 4))).next
    assert second is not None
    last = (await frames.commit(await frames.found(second, 2), failed=0)).next
    assert last is not None
    assert (await frames.nothing(last)).next is None

    assert [name for name in frames.planning.types() if name.startswith(("frame.", "stage.", "loop."))] == [
        *("stage.opened", "frame.dispatched", "frame.started"),
        *("frame.committed", "frame.dispatched", "frame.started"),
        *("frame.committed", "frame.dispatched"),
        *("frame.committed", "stage.closed", "loop.done"),
    ]
    context = (frames.planning.state.execution.steps["each"].result or {})["context"]
    assert (context["processed"], context["failed"], context["frame_count"], context["status"]) == (6, 0, 2, "ok")
    assert frames.planning.entered() == ["each", "after"]


async def test_a_cursor_ends_when_every_slot_has_found_nothing() -> None:
    frames = await cursor(width=3)
    held = [await frames.claim(slot) for slot in range(3)]
    assert (await frames.nothing(held[0])).next is None
    assert (await frames.claims(0)).refusal == "stage.drained"
    assert (await frames.nothing(held[1])).next is None
    following = (await frames.commit(await frames.found(held[2], 3))).next
    assert following is not None
    assert "loop.done" not in frames.planning.types()
    await frames.nothing(following)
    assert frames.planning.entered() == ["each", "after"]


async def test_a_frame_that_is_lost_keeps_the_rows_that_it_has_claimed() -> None:
    frames = await cursor()
    planning = frames.planning
    lost = await frames.found(await frames.claim(0), 3)
    planning.pass_time(21)
    await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)
    again = await frames.claim(0, worker=OTHER)

    assert (again.key.frame_id, again.key.attempt) == (lost.key.frame_id, 2)
    assert not again.rows.claims
    assert (again.rows.collection, again.rows.start, again.rows.stop) == (lost.rows.collection, 0, 3)
    with pytest.raises(LeaseLost):
        await frames.found(lost, 3)
    answer = await frames.commit(again, worker=OTHER)
    assert answer.next is not None
    await planning.actors.commit_frame(
        OTHER,
        answer.next.key,
        CommittedRows(result={**stored(), "reference": None}, stop=0, success=0, failed=0),
        wants_next=True,
    )
    assert planning.entered() == ["each", "after"]


async def test_a_frame_that_is_lost_before_its_rows_are_known_claims_under_the_same_mark() -> None:
    frames = await cursor()
    planning = frames.planning
    lost = await frames.claim(0)
    planning.pass_time(21)
    await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)
    again = await frames.claim(0)

    assert (again.key.frame_id, again.key.attempt, again.rows.claims) == (lost.key.frame_id, 2, True)
    with pytest.raises(LeaseLost):
        await frames.found(lost, 3)


async def test_a_share_of_the_rows_of_a_cursor_is_judged_when_there_are_no_more() -> None:
    frames = await cursor(width=2, fail_fast_over="share: 0.5")
    first, other = await frames.claim(0), await frames.claim(1)
    second = (await frames.commit(await frames.found(first, 1), failed=1)).next
    assert second is not None, "all rows so far have failed, and others may follow"
    third = (await frames.commit(await frames.found(second, 1))).next
    assert third is not None
    await frames.nothing(third)
    await frames.nothing(other)

    loop = frames.planning.state.execution.loops["each"]
    assert (loop.status, loop.failed, loop.total) == ("partial", 1, 2)
    assert frames.planning.entered() == ["each", "after"]


async def test_a_cursor_of_which_too_large_a_share_has_failed_ends_when_its_last_slot_finds_nothing() -> None:
    frames = await cursor(fail_fast_over="share: 0.5")
    second = (await frames.commit(await frames.found(await frames.claim(0), 3), failed=3)).next
    assert second is not None
    third = (await frames.commit(await frames.found(second, 2))).next
    assert third is not None
    await frames.nothing(third)

    error = frames.planning.state.execution.error
    assert error is not None and error["code"] == "loop.budget_exceeded"
    assert "3 of 5 items failed" in error["message"]


@pytest.mark.parametrize("budget", ["count: 1, share: 0.5", "share: 0"])
async def test_more_failed_rows_than_others_can_make_up_for_end_a_cursor_at_once_with_fail_fast(budget: str) -> None:
    frames = await cursor(fail_fast_over=budget)
    answer = await frames.commit(await frames.found(await frames.claim(0), 3), failed=2)

    assert answer.next is None
    assert frames.planning.types()[-1] == "playbook.failed"


async def test_rows_of_a_cursor_that_are_left_go_to_a_frame_of_the_same_claim() -> None:
    frames = await cursor()
    first = await frames.found(await frames.claim(0), 4)
    following = (await frames.commit(first, stop=1)).next

    assert following is not None
    assert not following.rows.claims
    assert (following.rows.start, following.rows.stop, following.rows.collection_at) == (1, 4, 0)
    assert following.rows.collection == first.rows.collection
    assert decode_state(encode_state(frames.planning.state)) == frames.planning.state


async def test_a_claim_that_fails_for_good_fails_the_step() -> None:
    frames = await cursor()
    frame: GrantedFrame | None = await frames.claim(0)
    while frame is not None:
        answer = await frames.planning.actors.fail_frame(WORKER, frame.key, failure(), retryable=True, wants_next=True)
        frame = answer.next

    assert told(frames.planning)["frame.failed"] == 2
    error = frames.planning.state.execution.error
    assert error is not None and error["code"] == "loop.budget_exceeded"


async def test_rows_that_were_told_before_are_told_again_without_harm() -> None:
    frames = await cursor()
    frame = await frames.claim(0)
    await frames.found(frame, 3)
    assert (await frames.found(frame, 3)).rows.start == 0
    with pytest.raises(FrameHasRows, match="other rows"):
        await frames.found(frame, 2)
    assert told(frames.planning)["frame.started"] == 1


async def test_a_frame_that_fails_with_rows_told_before_is_tried_again_with_those() -> None:
    frames = await cursor()
    frame = await frames.claim(0)
    known = await frames.found(frame, 3)
    actors = frames.planning.actors
    again = (await actors.fail_frame(WORKER, frame.key, failure(), retryable=True, wants_next=True)).next

    assert again is not None
    assert (again.key.frame_id, again.key.attempt, again.rows.claims) == (frame.key.frame_id, 2, False)
    assert (again.rows.collection, again.rows.start, again.rows.stop) == (known.rows.collection, 0, 3)


async def test_with_bisect_the_rows_that_fail_stand_alone_in_the_end() -> None:
    frames = await begun(rows(width=1, frame="{max_rows: 64, process: frame, on_failure: bisect}"), n=64)
    planning = frames.planning
    poison = {7, 40}
    most = 0
    frame: GrantedFrame | None = await frames.claim(0)
    while frame is not None:
        most = max(most, len(frames.stage.frames))
        if poison.isdisjoint(range(frame.rows.start, frame.rows.stop)):
            frame = (await frames.commit(frame)).next
        else:
            answer = await planning.actors.fail_frame(WORKER, frame.key, failure(), retryable=False, wants_next=True)
            frame = answer.next

    loop = planning.state.execution.loops["each"]
    assert (loop.success, loop.failed) == (62, 2)
    failed = [one.content for one in planning.events() if one.envelope.event_type == "frame.failed"]
    alone = [one for one in failed if isinstance(one, FrameFailed) and one.outcome == "final"]
    assert [(one.start, one.stop) for one in alone] == [(7, 8), (40, 41)]
    parts = [one.content for one in planning.events() if isinstance(one.content, FrameDispatched)]
    assert all(part.parent_frame_id for part in parts if isinstance(part, FrameDispatched) and part.frame_index)
    assert most <= 14, "what waits grows with the halvings and not with the rows"


FANOUT = """
workflow:
- step: each
  loop: {in: "{{ range(n) | list }}", spec: {mode: fanout, max_in_flight: 4, max_item_retries: 1}}
  tool: {kind: noop}
  next: {arcs: [{step: after, when: "{{ fanin.status == 'partial' and fanin.failed == 2 and fanin.total == 50 }}"}]}
- {step: after, tool: {kind: noop}}
"""


async def test_a_fan_out_tells_of_each_item_once_and_its_fan_in_with_the_end_of_the_loop() -> None:
    frames = await begun(FANOUT, n=50)
    planning = frames.planning
    frame: GrantedFrame | None = await frames.claim(0)
    while frame is not None:
        assert frame.rows.stop - frame.rows.start == 1
        if frame.rows.start not in (3, 30):
            frame = (await frames.commit(frame)).next
        elif frame.key.attempt == 1:
            answer = await planning.actors.fail_frame(WORKER, frame.key, failure(), retryable=True, wants_next=True)
            frame = answer.next
        else:
            frame = (await frames.commit(frame, failed=1)).next

    counts = told(planning)
    assert (counts["loop.fanout.started"], counts["loop.fanin.completed"], counts["loop.done"]) == (1, 1, 1)
    assert (counts["loop.shard.done"], counts["loop.shard.failed"], counts["loop.shard.enqueued"]) == (48, 2, 52)
    shards = [one.content for one in planning.events() if isinstance(one.content, ShardEnqueued)]
    again = [(one.iter_index, one.iter_key, one.shard_attempt) for one in shards if one.iter_index in (3, 4)]
    assert again == [(3, "3", 1), (3, "3", 2), (4, "4", 1)], "tried again alone, under the same key"
    ends = [one for one in planning.events() if isinstance(one.content, ShardDone | ShardFailed)]
    attempts = {one.envelope.command_id.rpartition("/")[0]: one.envelope.command_id[-1] for one in ends}
    assert attempts == {f"{frames.stage.stage_id}-{n}": "2" if n in (3, 30) else "1" for n in range(50)}
    closing = planning.types().index("stage.closed")
    assert planning.types()[closing : closing + 3] == ["stage.closed", "loop.fanin.completed", "loop.done"]
    assert planning.entered() == ["each", "after"]


async def test_items_of_a_fan_out_that_end_during_a_pause_are_told_when_it_is_over() -> None:
    frames = await begun(FANOUT, n=2)
    planning = frames.planning
    held = [await frames.claim(0), await frames.claim(1)]
    await planning.actors.steer(planning.execution_id, SteerAction.PAUSE, by="me", reason="")
    for frame in held:
        await frames.commit(frame)
    await planning.actors.steer(planning.execution_id, SteerAction.RESUME, by="me", reason="")
    assert told(planning)["loop.shard.done"] == 2
    assert told(planning)["loop.done"] == 1


async def test_a_scaler_sees_frames_that_workers_could_run_and_readers_all_that_are_left() -> None:
    frames = await begun(rows(width=3), n=40)
    await frames.claim(0)
    assert backlog_of([frames.planning.state]) == {("default", "running"): 1, ("default", "waiting"): 2}
    backlog = frame_backlog_of([frames.planning.state])
    assert (backlog["loop", "running"], backlog["loop", "waiting"], backlog["fanout", "waiting"]) == (1, 9, 0)


async def test_how_far_calls_are_stands_in_the_heartbeats_of_commands_and_frames() -> None:
    frames = await begun(rows(), n=4)
    frame = await frames.claim(0)
    told: JsonObject = {"engine": "spark", "tasks_done": 1, "tasks": 2}

    await frames.planning.actors.heartbeat_frames(WORKER, [frame.key], progress={frame.key: told})
    await frames.run_out(frame)
    command = await frames.planning.claim("after")
    await frames.planning.actors.heartbeat(WORKER, [command.key], progress={command.key: told})
    await frames.planning.actors.heartbeat(WORKER, [command.key])

    beats = [one.envelope for one in frames.planning.events() if one.envelope.event_type.endswith(".heartbeat")]
    assert [one.meta.get("progress") for one in beats] == [told, told, None]


async def test_how_long_workers_had_frames_is_known_by_how_that_ended() -> None:
    frames = await begun(rows(), n=8)
    planning = frames.planning
    committed, failed = await frames.claim(0), await frames.claim(1)
    before = planning.state
    planning.pass_time(7)
    await frames.commit(committed, wants_next=False)
    await planning.actors.fail_frame(WORKER, failed.key, failure(retryable=True), retryable=True, wants_next=False)

    ends = [
        to_draft(one.content, idempotency_key="k", event_time=one.envelope.event_time)
        for one in planning.events()
        if one.content is not None
    ]
    assert sorted(leases_that_ended(before, ends)) == [("loop", "committed", 7.0), ("loop", "failed", 7.0)]


async def test_who_has_frames_of_a_stage_is_told_until_it_is_over() -> None:
    frames = await begun(rows(frame="{max_rows: 1}"), n=2)
    planning, stage_id = frames.planning, frames.stage.stage_id

    async def holders() -> Mapping[int, str]:
        return await planning.actors.holders_of(planning.execution_id, stage_id)

    assert await holders() == {}
    first, second = await frames.claim(0), await frames.claim(1, worker=OTHER)
    version = planning.state.stream_version
    assert await holders() == {0: WORKER.worker_id, 1: OTHER.worker_id}
    assert planning.state.stream_version == version, "to look is no event"

    await frames.commit(first)
    assert await holders() == {1: OTHER.worker_id}
    assert await planning.actors.holders_of(planning.execution_id, f"{stage_id}x") == {}
    await frames.commit(second, worker=OTHER)
    assert await holders() == {}
