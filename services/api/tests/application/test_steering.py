"""Pause, resume, finalize and redrive for people: who may, what is refused, and what comes of it with a planner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.failed_rows import FailedRowsOf
from noetl_api.application.finalize_execution import FinalizeExecution
from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.application.redrive_execution import RedriveExecution, Redriven, RedriveRequest, TooMuchToInherit
from noetl_api.application.steer_execution import SteerExecution
from noetl_api.telemetry import ApiMetrics
from noetl_contracts.subjects import CANCEL_SUBJECT
from noetl_core.canonical import decode, encode
from noetl_core.errors import (
    AlreadyTerminal,
    InvalidInput,
    KeyTaken,
    NoFailedRows,
    NotFound,
    NothingToRedrive,
    NotPaused,
    NotPermitted,
    NotTerminal,
    Unavailable,
)
from noetl_core.executions.state import ExecutionStatus
from noetl_core.ports.commands import ToldChunk
from noetl_core.ports.frames import CommittedRows, GrantedFrame, StageSlot
from noetl_core.ports.steering import SteerAction, Steered
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.failed_rows import FailedRows
from noetl_servicekit.loop_results import LoopResults
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.stored_values import StoredValues
from noetl_testkit.memory.no_projections import NoProjections
from noetl_testkit.planning import WORKER, Planning, ok
from noetl_testkit.until import until

ADA = Caller(name="ada", tenant_id="t", organization_id="o", role=Role.WRITER)
RITA = Caller(name="rita", tenant_id="t", organization_id="o", role=Role.READER)
RIVAL = Caller(name="rival", tenant_id="rival", organization_id="o", role=Role.WRITER)
LINE = """
workload: {who: world}
workflow:
- {step: a, tool: {kind: noop}, set: {ctx.n: "{{ output.data.n }}"}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop}, next: {arcs: [{step: c}]}}
- {step: c, tool: {kind: noop}}
"""
FAILED = {
    "status": "error",
    "reference": None,
    "parent_ref": None,
    "context": {"error": {"kind": "unknown", "code": "X", "message": "no"}},
}


class World:
    """Api's use cases and a planner, over the same twins."""

    def __init__(self) -> None:
        self.planning = Planning()
        log, metrics = self.planning.log, ApiMetrics(MetricSet())
        executions = QueryExecutions(projections=NoProjections(), log=log, signal=CommitSignal(), metrics=metrics)
        self.steer = SteerExecution(log, log, self.planning.actors)
        self.finalize = FinalizeExecution(log)
        self.redrive = RedriveExecution(
            log=log,
            executions=executions,
            catalog=self.planning.catalog,
            parsed=ParsedPlaybooks(),
            payloads=self.planning.payloads,
            failed_rows=FailedRowsOf(
                FailedRows(log, StoredValues(self.planning.payloads, ArrowTables())), payloads=self.planning.payloads
            ),
            next_id=log.next_id,
            metrics=metrics,
        )

    async def fail_at_b(self) -> int:
        await self.planning.start(LINE, who="world")
        await self.planning.run("a", ok(n=7))
        await self.planning.run("b", FAILED)
        return self.planning.execution_id

    async def taken_up(self, redriven: Redriven) -> Planning:
        self.planning.execution_id = redriven.execution_id
        await until(lambda: len(self.planning.events()) > 1)
        return self.planning


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.planning.actors.stop()


async def test_who_pauses_is_named_and_others_cannot(world: World) -> None:
    await world.planning.start(LINE, who="w")
    execution_id = world.planning.execution_id

    steered = await world.steer(ADA, None, execution_id, SteerAction.PAUSE, reason="lunch")

    assert steered.status == "PAUSED"
    assert world.planning.events()[-1].envelope.meta == {"reason": "lunch", "paused_by": "ada"}
    with pytest.raises(NotFound):
        await world.steer(RIVAL, None, execution_id, SteerAction.RESUME)
    with pytest.raises(NotPermitted):
        await world.steer(RITA, None, execution_id, SteerAction.RESUME)
    assert (await world.steer(ADA, None, execution_id, SteerAction.RESUME)).status == "RUNNING"


async def test_a_family_is_paused_and_resumed_together_if_that_is_asked_for(world: World) -> None:
    planning = world.planning
    ids: list[int] = []
    for _ in range(3):  # each below the one before
        planning.execution_id = planning.log.next_id()
        await planning.start(LINE, parent=ids[-1] if ids else None, who="w")
        ids.append(planning.execution_id)
    await planning.run("a", ok(n=1))
    await planning.run("b")
    await planning.run("c")
    root, child, ended = ids

    def statuses() -> list[str]:
        found = []
        for planning.execution_id in (root, child, ended):
            found.append(planning.state.execution.status.value)
        return found

    alone = await world.steer(ADA, None, root, SteerAction.PAUSE)
    assert (alone.descendants, statuses()) == (0, ["PAUSED", "RUNNING", "COMPLETED"])
    together = await world.steer(ADA, None, root, SteerAction.PAUSE, reason="lunch", cascade=True)
    assert (together.descendants, statuses()) == (1, ["PAUSED", "PAUSED", "COMPLETED"])
    again = await world.steer(ADA, None, root, SteerAction.PAUSE, cascade=True)
    assert (again.descendants, statuses()) == (1, ["PAUSED", "PAUSED", "COMPLETED"]), "to repeat it is harmless"
    resumed = await world.steer(ADA, None, root, SteerAction.RESUME, cascade=True)
    assert (resumed.status, statuses()) == ("RUNNING", ["RUNNING", "RUNNING", "COMPLETED"])


async def test_a_child_that_was_started_while_its_family_was_paused_is_found_too(world: World) -> None:
    planning = world.planning
    await planning.start(LINE, who="w")
    root = planning.execution_id
    first = planning.log.next_id()
    planning.execution_id = first
    await planning.start(LINE, parent=root, who="w")
    late = planning.log.next_id()

    class WhileSteering:
        """A call that is under way starts a child after those below were listed."""

        async def steer(self, execution_id: int, action: SteerAction, *, by: str, reason: str) -> Steered:
            if execution_id == first and late not in planning.log.streams:
                planning.execution_id = late
                await planning.start(LINE, parent=root, who="w")
            return await planning.actors.steer(execution_id, action, by=by, reason=reason)

    steer = SteerExecution(planning.log, planning.log, WhileSteering())
    assert (await steer(ADA, None, root, SteerAction.PAUSE, cascade=True)).descendants == 2
    for planning.execution_id in (root, first, late):
        assert planning.state.execution.status is ExecutionStatus.PAUSED


async def test_steering_that_cannot_be_is_refused(world: World) -> None:
    await world.planning.start(LINE, who="w")
    execution_id = world.planning.execution_id

    with pytest.raises(NotPaused):
        await world.steer(ADA, None, execution_id, SteerAction.RESUME)
    with pytest.raises(InvalidInput):
        await world.steer(ADA, None, execution_id, SteerAction.PAUSE, reason="x" * 1001)
    with pytest.raises(NotFound):
        await world.steer(ADA, None, 12345, SteerAction.PAUSE)
    with pytest.raises(Unavailable, match="NOETL_PLANNER_ADDRESS"):
        await SteerExecution(world.planning.log, world.planning.log, None)(ADA, None, execution_id, SteerAction.PAUSE)


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED"])
async def test_an_end_is_forced_and_workers_are_told(world: World, status: str) -> None:
    await world.planning.start(LINE, who="w")
    command = await world.planning.claim("a")
    execution_id = world.planning.execution_id

    ended = [await world.finalize(ADA, None, execution_id, status=status, reason="by hand") for _ in range(2)]

    assert [one.status for one in ended] == [status, status]
    assert ended[0] == ended[1]
    assert world.planning.state.execution.status.value == status
    assert world.planning.types()[-2:] == [f"workflow.{status.lower()}", f"playbook.{status.lower()}"]
    assert world.planning.events()[-1].envelope.meta["finalized_by"] == "ada"
    assert world.planning.log.hints[-1].subject == CANCEL_SUBJECT
    with pytest.raises(AlreadyTerminal):
        await world.finalize(ADA, None, execution_id, status=status, reason="another")
    with pytest.raises(AlreadyTerminal):
        await world.planning.complete(command)


async def test_what_has_ended_cannot_be_ended_in_another_way(world: World) -> None:
    execution_id = await world.fail_at_b()

    with pytest.raises(AlreadyTerminal):
        await world.finalize(ADA, None, execution_id, status="COMPLETED")
    with pytest.raises(AlreadyTerminal):
        await world.steer(ADA, None, execution_id, SteerAction.PAUSE)


async def test_an_end_that_is_none_is_refused(world: World) -> None:
    await world.planning.start(LINE, who="w")

    with pytest.raises(InvalidInput, match="COMPLETED or FAILED"):
        await world.finalize(ADA, None, world.planning.execution_id, status="CANCELLED")
    with pytest.raises(NotFound):
        await world.finalize(RIVAL, None, world.planning.execution_id)
    with pytest.raises(NotPermitted):
        await world.finalize(RITA, None, world.planning.execution_id)


async def test_a_failed_execution_is_taken_up_at_the_step_that_failed(world: World) -> None:
    old = await world.fail_at_b()
    before = world.planning.types()

    redriven = await world.redrive(ADA, None, RedriveRequest(execution_id=old, reason="mended"))

    assert world.planning.types() == before
    planning = await world.taken_up(redriven)
    assert planning.types() == [
        "playbook.initialized",
        "execution.inherited",
        "workflow.initialized",
        "step.enter",
        "command.issued",
    ]
    first = planning.events()[0].envelope.meta
    assert (first["redrive_of"], first["redriven_by"], first["reason"]) == (str(old), "ada", "mended")
    command = await planning.claim("b")
    assert (command.cause_step, dict(command.variables.values)) == ("a", {"n": 7})
    assert command.results["a"]["context"] == {"select": {"/n": 7}}
    await planning.complete(command)
    await planning.run("c")
    assert planning.state.execution.status is ExecutionStatus.COMPLETED
    assert planning.state.execution.redrive_of == str(old)
    assert planning.entered() == ["b", "c"]


async def test_a_completed_execution_is_taken_up_at_the_step_that_is_named(world: World) -> None:
    planning = await world.planning.start(LINE, who="w")
    for step, result in (("a", ok(n=1)), ("b", ok()), ("c", ok())):
        await planning.run(step, result)
    old = planning.execution_id

    with pytest.raises(NothingToRedrive):
        await world.redrive(ADA, None, RedriveRequest(execution_id=old))
    redriven = await world.redrive(ADA, None, RedriveRequest(execution_id=old, step="c"))

    planning = await world.taken_up(redriven)
    assert planning.entered() == ["c"]
    assert set((await planning.claim("c")).results) == {"a", "b", "c"}


async def test_what_was_ended_is_taken_up_at_the_only_step_that_ran(world: World) -> None:
    planning = await world.planning.start(LINE, who="w")
    await planning.run("a", ok(n=1))
    await world.finalize(ADA, None, planning.execution_id)

    redriven = await world.redrive(ADA, None, RedriveRequest(execution_id=planning.execution_id))

    assert redriven.step == "b"
    assert (await world.taken_up(redriven)).entered() == ["b"]


async def test_a_redrive_that_cannot_be_is_refused(world: World) -> None:
    await world.planning.start(LINE, who="w")
    running = world.planning.execution_id

    with pytest.raises(NotTerminal):
        await world.redrive(ADA, None, RedriveRequest(execution_id=running))
    await world.finalize(ADA, None, running)
    with pytest.raises(NotFound) as missing:
        await world.redrive(ADA, None, RedriveRequest(execution_id=running, step="nowhere"))
    with pytest.raises(NotFound):
        await world.redrive(RIVAL, None, RedriveRequest(execution_id=running, step="a"))
    with pytest.raises(NotPermitted):
        await world.redrive(RITA, None, RedriveRequest(execution_id=running, step="a"))
    with pytest.raises(InvalidInput):
        await world.redrive(ADA, None, RedriveRequest(execution_id=running, step="a", start_key="call/x"))

    assert missing.value.code == "execution.step_not_found"


async def test_a_redrive_under_a_key_happens_once(world: World) -> None:
    old = await world.fail_at_b()
    asked = RedriveRequest(execution_id=old, start_key="again")

    first = await world.redrive(ADA, None, asked)
    again = await world.redrive(ADA, None, asked)

    assert (first.created, again.created) == (True, False)
    assert first.execution_id == again.execution_id
    with pytest.raises(KeyTaken):
        await world.redrive(ADA, None, RedriveRequest(execution_id=old, step="c", start_key="again"))


async def test_a_redrive_can_be_redriven(world: World) -> None:
    old = await world.fail_at_b()
    planning = await world.taken_up(await world.redrive(ADA, None, RedriveRequest(execution_id=old)))
    await planning.run("b", FAILED)
    second = planning.execution_id

    planning = await world.taken_up(await world.redrive(ADA, None, RedriveRequest(execution_id=second)))
    await planning.run("b")
    await planning.run("c")

    assert planning.state.execution.redrive_of == str(second)
    assert planning.state.execution.variables == {"n": 7}
    assert planning.state.execution.status is ExecutionStatus.COMPLETED


async def test_a_step_that_failed_with_a_chunk_is_taken_up_with_that_chunk(world: World) -> None:
    planning = await world.planning.start("""
workflow:
- step: read
  tool: {kind: duckdb, command: SELECT 1, spec: {stream: {}}}
  next: {arcs: [{step: take, on: call.partial}]}
- {step: take, tool: {kind: noop}, next: {arcs: [{step: after}]}}
- {step: after, tool: {kind: noop}}
""")
    reading = await planning.claim("read")
    refs = [
        await planning.payloads.put(
            tenant_id="t", organization_id="o", data=f"[{index}]".encode(), media_type="application/json"
        )
        for index in range(3)
    ]
    for index, rows in enumerate(refs):
        chunk = ToldChunk(task="r", call=0, chunk_index=index, row_count=1, has_more=index < 2, rows=rows)
        assert await planning.actors.tell_chunk(WORKER, reading.key, chunk)
    for result in (ok(), FAILED, ok()):
        await planning.run("take", result)
        if result is not FAILED:
            await planning.run("after")  # which reads what was taken, before the next chunk is
    await planning.complete(reading)
    old = planning.execution_id
    assert planning.state.execution.status is ExecutionStatus.FAILED

    planning = await world.taken_up(await world.redrive(ADA, None, RedriveRequest(execution_id=old)))
    command = await planning.claim("take")

    assert (command.chunk and (command.chunk.chunk_index, command.chunk.reference)) == (1, refs[1].to_json())
    await planning.complete(command)
    await planning.run("after")
    assert planning.state.execution.status is ExecutionStatus.COMPLETED


async def test_much_is_told_in_several_events_of_one_append_and_too_much_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = "".join(
        f"- {{step: s{n}, tool: {{kind: noop}}, next: {{arcs: [{{step: s{n + 1}}}]}}}}\n" for n in range(30)
    )
    planning = await world.planning.start(f"workflow:\n{steps}- {{step: s30, tool: {{kind: noop}}}}\n")
    large = {"status": "ok", "reference": None, "parent_ref": None, "context": {"select": {"/x": "y" * 4000}}}
    for n in range(30):
        await planning.run(f"s{n}", large)
    await planning.run("s30", FAILED)
    old = planning.execution_id

    planning = await world.taken_up(await world.redrive(ADA, None, RedriveRequest(execution_id=old)))

    inherited = [one for one in planning.events() if one.envelope.event_type == "execution.inherited"]
    assert len(inherited) > 5
    assert set(planning.state.execution.steps) == {f"s{n}" for n in range(31)}
    monkeypatch.setattr("noetl_api.application.redrive_execution.MAX_INHERITED_BYTES", 1000)
    with pytest.raises(TooMuchToInherit):
        await world.redrive(ADA, None, RedriveRequest(execution_id=old))


async def test_what_a_loop_gave_is_found_in_the_log_of_the_old_execution(world: World) -> None:
    planning = await world.planning.start(
        """
workflow:
- step: each
  loop: {in: [1, 2], iterator: it, spec: {mode: parallel, failure_budget: {count: 2}}}
  tool: {kind: noop}
  next: {arcs: [{step: b}]}
- {step: b, tool: {kind: noop}}
"""
    )
    await planning.run_all("each", FAILED)
    await planning.run("b", FAILED)
    old = planning.execution_id

    planning = await world.taken_up(await world.redrive(ADA, None, RedriveRequest(execution_id=old)))

    result = (await planning.claim("b")).results["each"]
    told = await LoopResults(planning.log, StoredValues(planning.payloads, ArrowTables()))(
        None, planning.execution_id, result
    )
    assert told["results"] == [{"status": "error", "error": FAILED["context"]["error"]}] * 2  # type: ignore[index]


FRAMES = """
workflow:
- {step: load, tool: {kind: noop}, set: {ctx.n: "{{ output.data.n }}"}, next: {arcs: [{step: each}]}}
- step: each
  loop:
    SOURCE
    spec: {engine: inline, max_in_flight: 1, failure_budget: {share: 1}, frame: {max_rows: 4}}
  tool: {kind: noop}
  next: {arcs: [{step: after}]}
- {step: after, tool: {kind: noop}}
"""
LISTED = FRAMES.replace("SOURCE", 'in: "{{ range(n) | list }}"')
CLAIMED = FRAMES.replace("SOURCE", "cursor: {kind: postgres, auth: db, claim: SELECT 1}")


class Rows:
    """A worker of frames, by hand, whose outcomes are stored."""

    def __init__(self, planning: Planning) -> None:
        self.planning = planning

    async def claim(self) -> GrantedFrame | None:
        stage = self.planning.state.execution.stages["each"]
        slot = StageSlot(execution_id=self.planning.execution_id, stage_id=stage.stage_id, slot=0)
        (claim,) = await self.planning.actors.claim_frames(WORKER, [slot])
        return claim.frame

    async def put(self, value: Any) -> Any:
        data = encode(value)
        return await self.planning.payloads.put(
            tenant_id="t", organization_id="o", data=data, media_type="application/json"
        )

    async def start(self, frame: GrantedFrame, rows: list[Any]) -> int:
        """Claim rows through the cursor; returns the index of the first."""
        return await self.planning.actors.start_frame(WORKER, frame.key, await self.put(rows), row_count=len(rows))

    async def commit(self, frame: GrantedFrame, *, start: int, count: int, failed: tuple[int, ...] = ()) -> None:
        """Outcomes of rows, of which those at some places have failed."""
        bad = {"status": "error", "error": {"code": "BAD", "message": "no"}}
        ref = await self.put([bad if place in failed else {"n": place} for place in range(count)])
        context = {"failed_rows": [[place, place] for place in failed]} if failed else {}
        result = {"status": "ok", "reference": ref.to_json(), "parent_ref": None, "context": context}
        outcome = CommittedRows(
            result=result, stop=start + count, success=count - len(failed), failed=len(failed), first_error=None
        )
        await self.planning.actors.commit_frame(WORKER, frame.key, outcome, wants_next=False)


async def test_rows_that_failed_run_again_alone_and_lead_nowhere(world: World) -> None:
    planning = await world.planning.start(LISTED)
    await planning.run("load", ok(n=10))
    rows = Rows(planning)
    for failed in ((1, 3), (), (1,)):
        frame = await rows.claim()
        assert frame is not None
        await rows.commit(frame, start=frame.rows.start, count=frame.rows.stop - frame.rows.start, failed=failed)
    await planning.run("after")
    old = planning.execution_id

    redriven = await world.redrive(ADA, None, RedriveRequest(execution_id=old, step="each", failed_rows=True))

    assert (redriven.row_count, redriven.step) == (3, "each")
    planning = await world.taken_up(redriven)
    frame = await rows.claim()
    assert frame is not None and frame.rows.collection is not None
    assert decode(await planning.payloads.get(frame.rows.collection)) == [1, 3, 9]
    await planning.replace_planner()
    await rows.commit(frame, start=0, count=3)
    execution = planning.state.execution
    assert (planning.entered(), execution.status) == (["each"], ExecutionStatus.COMPLETED)
    assert execution.variables == {"n": 10}
    with pytest.raises(NoFailedRows):
        again = RedriveRequest(execution_id=redriven.execution_id, step="each", failed_rows=True)
        await world.redrive(ADA, None, again)


async def test_rows_that_a_cursor_gave_run_again_without_being_claimed(world: World) -> None:
    planning = await world.planning.start(CLAIMED)
    await planning.run("load", ok(n=0))
    rows = Rows(planning)
    for number, failed in enumerate(((0,), (2,))):
        frame = await rows.claim()
        assert frame is not None and frame.rows.claims
        start = await rows.start(frame, [{"id": 10 * number + one} for one in range(3)])
        await rows.commit(frame, start=start, count=3, failed=failed)
    frame = await rows.claim()
    assert frame is not None
    nothing = CommittedRows(result=ok(), stop=0, success=0, failed=0)
    await planning.actors.commit_frame(WORKER, frame.key, nothing, wants_next=False)
    await planning.run("after")
    request = RedriveRequest(execution_id=planning.execution_id, step="each", failed_rows=True, start_key="once")

    redriven = await world.redrive(ADA, None, request)
    repeated = await world.redrive(ADA, None, request)

    assert (redriven.created, repeated.created, redriven.execution_id) == (True, False, repeated.execution_id)
    await world.taken_up(redriven)
    frame = await rows.claim()
    assert frame is not None and frame.rows.collection is not None
    assert not frame.rows.claims
    assert decode(await planning.payloads.get(frame.rows.collection)) == [{"id": 0}, {"id": 12}]


async def test_steps_without_rows_have_none_to_run_again(world: World) -> None:
    old = await world.fail_at_b()

    with pytest.raises(NotFound, match="loop of step"):
        await world.redrive(ADA, None, RedriveRequest(execution_id=old, step="b", failed_rows=True))


async def test_items_that_are_told_one_by_one_run_again_too(world: World) -> None:
    planning = await world.planning.start("""
workflow:
- step: each
  loop: {in: [a, b, c], spec: {mode: parallel, failure_budget: {count: 1}}}
  tool: {kind: noop}
  next: {arcs: [{step: after}]}
- {step: after, tool: {kind: noop}}
""")
    for key, result in zip(planning.all_issued("each"), (ok(), FAILED, ok()), strict=True):
        (outcome,) = await planning.actors.claim(WORKER, [key])
        assert outcome.command is not None
        await planning.complete(outcome.command, result)
    await planning.run("after")

    redriven = await world.redrive(
        ADA, None, RedriveRequest(execution_id=planning.execution_id, step="each", failed_rows=True)
    )

    planning = await world.taken_up(redriven)
    (command,) = [await planning.claim("each")]
    assert redriven.row_count == 1
    assert command.item is not None and command.item.collection is not None
    assert decode(await planning.payloads.get(command.item.collection)) == ["b"]
    await planning.complete(command)
    assert (planning.entered(), planning.state.execution.status) == (["each"], ExecutionStatus.COMPLETED)
