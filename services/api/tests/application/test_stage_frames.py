"""Frames over HTTP: the planner decides, and every answer of its has a meaning."""

from __future__ import annotations

from typing import Any, cast

import pytest
from noetl_api.application.frames import FrameRefused, StageFrames
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.entrypoints.http.frames import CursorIn, FrameCommitBody, FrameOut
from noetl_core.errors import FrameAlreadyTerminal, InvalidInput, NotFound, NotPermitted, Unavailable
from noetl_core.ports.commands import Variables, Worker
from noetl_core.ports.frames import FrameCommit
from noetl_servicekit.callers import Caller, Role
from noetl_testkit.planning import Planning

SERVICE = Caller(name="service", tenant_id="*", organization_id="*", role=Role.SERVICE)
ADA = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.ADMIN)
WORKER = Worker(worker_id="w")
STORED = {"uri": "noetl://tenant/t/org/o/payloads/sha256/a", "sha256": "a", "type": "object_store", "ref_id": "r"}
ROWS = """
workflow:
- step: each
  loop: {in: [a, b, c, d, e], spec: {mode: parallel, max_in_flight: 2, engine: inline, frame: {max_rows: 2}}}
  tool: {kind: noop}
"""


class Visible:
    """Executions that everybody sees, or nobody."""

    def __init__(self, *, seen: bool = True) -> None:
        self._seen = seen

    async def get(self, caller: Caller, scope: Any, execution_id: int, **_: Any) -> None:
        if not self._seen:
            raise NotFound("execution", str(execution_id), code="execution.not_found")


def over(planning: Planning, *, seen: bool = True, planned: bool = True) -> StageFrames:
    executions = cast("QueryExecutions", Visible(seen=seen))
    return StageFrames(executions=executions, planner=planning.actors if planned else None)


async def commit(frames: StageFrames, frame: FrameOut, **changed: Any) -> FrameCommit:
    fields = {
        "worker_id": "w",
        "attempt": frame.attempt,
        "cursor": frame.cursor,
        "output_ref": STORED,
        "row_count": frame.cursor["stop"] - frame.cursor["start"],
        **changed,
    }
    body = FrameCommitBody(**fields)
    return await frames.commit(
        SERVICE,
        None,
        frame.frame_id,
        body.worker,
        attempt=body.attempt,
        rows=body.rows(),
        variables=Variables(),
        wants_next=True,
    )


def stage_id(planning: Planning) -> str:
    return planning.state.execution.stages["each"].stage_id


async def test_frames_are_claimed_kept_and_committed() -> None:
    planning = await Planning().start(ROWS)
    frames = over(planning)
    claimed = await frames.claim(SERVICE, None, stage_id(planning), WORKER, count=5)
    first, second = (FrameOut.of(frame) for frame in claimed)

    assert (first.rows, second.rows) == (["a", "b"], ["c", "d"])
    await frames.heartbeat(SERVICE, None, first.frame_id, WORKER, attempt=1)
    following = (await commit(frames, first)).next
    assert following is not None
    assert FrameOut.of(following).rows == ["e"]
    await commit(frames, second)
    await commit(frames, FrameOut.of(following))
    assert planning.types()[-1] == "playbook.completed"


async def test_what_cannot_be_had_is_refused_by_name() -> None:
    planning = await Planning().start(ROWS)
    frames, stage = over(planning), stage_id(planning)
    (first, _) = await frames.claim(SERVICE, None, stage, WORKER, count=2)

    with pytest.raises(FrameRefused) as full:
        await frames.claim(SERVICE, None, stage, Worker(worker_id="other"), count=1)
    assert full.value.code == "stage.full"
    with pytest.raises(NotFound):
        await frames.claim(SERVICE, None, f"{planning.execution_id}-0000", WORKER, count=1)
    with pytest.raises(FrameRefused):
        await frames.heartbeat(SERVICE, None, first.key.frame_id, Worker(worker_id="other"), attempt=1)
    await commit(frames, FrameOut.of(first))
    with pytest.raises(FrameAlreadyTerminal, match=r"frame\.committed"):
        await frames.commit(
            SERVICE,
            None,
            first.key.frame_id,
            Worker(worker_id="other"),
            attempt=1,
            rows=FrameCommitBody(
                worker_id="x", attempt=1, cursor=CursorIn(start=0), output_ref=STORED, row_count=2
            ).rows(),
            variables=Variables(),
            wants_next=False,
        )


@pytest.mark.parametrize(
    "output_ref",
    [
        {"ipc": {"node_id": "n", "shm_name": "noetl-a"}},
        {**STORED, "parts": [{"ipc": {"node_id": "n"}, "sha256": "b"}]},
        {},
    ],
)
async def test_outputs_that_are_only_a_hint_are_refused_and_change_nothing(output_ref: dict[str, Any]) -> None:
    planning = await Planning().start(ROWS)
    frames = over(planning)
    (frame,) = await frames.claim(SERVICE, None, stage_id(planning), WORKER, count=1)
    with pytest.raises(InvalidInput):
        await commit(frames, FrameOut.of(frame), output_ref=output_ref)
    assert "frame.committed" not in planning.types()


async def test_frames_are_for_services_that_see_the_execution() -> None:
    planning = await Planning().start(ROWS)
    stage = stage_id(planning)
    with pytest.raises(NotPermitted):
        await over(planning).claim(ADA, None, stage, WORKER, count=1)
    with pytest.raises(NotFound):
        await over(planning, seen=False).claim(SERVICE, None, stage, WORKER, count=1)
    with pytest.raises(Unavailable):
        await over(planning, planned=False).claim(SERVICE, None, stage, WORKER, count=1)
    with pytest.raises(InvalidInput):
        await over(planning).claim(SERVICE, None, "no stage", WORKER, count=1)
