"""Frames with two planners, killed workers, commits told twice and leases that run out: every row counts once."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from noetl_core.canonical import decode
from noetl_core.errors import NoetlError
from noetl_core.ports.commands import CommandKey, Worker
from noetl_core.ports.frames import CommittedRows, GrantedFrame, StageSlot
from noetl_core.recorded import record
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameDispatched, FrameFailed
from noetl_testkit.chaos import ChaosWorld

ROWS, WIDTH = 61, 3
PLAYBOOK = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: chaos}}
workflow:
- step: l
  loop:
    in: "{{{{ range({ROWS}) | list }}}}"
    spec:
      mode: parallel
      max_in_flight: {WIDTH}
      engine: inline
      failure_budget: {{count: 100}}
      frame: {{max_rows: 5, lease_seconds: 0.05, max_attempts: 2, on_failure: FAILURE}}
  tool: {{kind: noop}}
  set: {{ctx.visits: "{{{{ (visits | default(0)) + 1 }}}}"}}
  next: {{arcs: [{{step: l, when: "{{{{ visits < 2 }}}}"}}, {{step: after}}]}}
- {{step: after, tool: {{kind: noop}}}}
"""
OK: dict[str, Any] = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}
STORED: dict[str, Any] = {**OK, "reference": {"type": "object_store", "ref_id": "r", "uri": "noetl://r"}}
ERROR = {"kind": "unknown", "code": "BAD", "message": "no", "retryable": True}
FAILED: dict[str, Any] = {"status": "error", "reference": None, "parent_ref": None, "context": {"error": ERROR}}


class World(ChaosWorld):
    """Workers that run frames, leave rows to others, fail, hang and die."""

    async def work_once(self, worker: Worker) -> None:
        """Claim whatever was hinted at, by any planner."""
        told: list[Any] = [decode(one.body) for one in self.log.hints]
        hints = [one for one in told if "stage_id" in one or "command_id" in one]
        hint = self.chance.choice(hints[-6:]) if hints else None
        if hint is None:
            return
        with suppress(NoetlError):
            if "command_id" in hint:
                key = CommandKey(execution_id=self.execution_id, command_id=hint["command_id"])
                (outcome,) = await self.any_planner().claim(worker, [key])
                if outcome.command is not None:
                    await self.any_planner().complete(worker, key, OK, wants_next=False)
                return
            slot = StageSlot(execution_id=self.execution_id, stage_id=hint["stage_id"], slot=hint["slot"])
            (claim,) = await self.any_planner().claim_frames(worker, [slot])
            frame = claim.frame
            while frame is not None:
                frame = await self.run(worker, frame)

    async def run(self, worker: Worker, frame: GrantedFrame) -> GrantedFrame | None:
        fate = self.chance.random()
        if fate < 0.1:
            return None  # The worker was killed.
        if fate < 0.2:
            with suppress(NoetlError):
                await self.any_planner().heartbeat_frames(worker, [frame.key])
        following: GrantedFrame | None = None
        stop = frame.rows.stop if fate < 0.9 else frame.rows.start + 1
        failed = fate > 0.8
        for _ in range(self.chance.choice((1, 1, 2))):
            wants_next = self.chance.random() < 0.7
            with suppress(NoetlError):
                if 0.2 < fate < 0.3:
                    ended = await self.any_planner().fail_frame(
                        worker, frame.key, FAILED, retryable=True, wants_next=wants_next
                    )
                else:
                    rows = CommittedRows(
                        result=STORED,
                        stop=stop,
                        success=stop - frame.rows.start - failed,
                        failed=int(failed),
                        first_error={"index": frame.rows.start, "code": "BAD", "message": "no"} if failed else None,
                    )
                    ended = await self.any_planner().commit_frame(worker, frame.key, rows, wants_next=wants_next)
                following = ended.next or following
        return following

    async def reap(self, *, share: float = 0.3) -> None:
        await super().reap(share=share)
        with suppress(NoetlError):
            await self.any_planner().pass_deadlines(self.execution_id, through=self.now)

    def sweep(self) -> None:
        """Planners compare heads, and hint at what nobody has claimed."""
        super().sweep()
        for planner in self.planners:
            self.log.hints += [hint for hint in planner.hints_for_claimable() if hint not in self.log.hints]


@pytest.mark.parametrize("seed", range(8))
async def test_every_row_counts_once_and_every_loop_ends(seed: int) -> None:
    world = World(seed, trouble=0.08)
    await world.begin_with(PLAYBOOK.replace("FAILURE", "bisect" if seed % 2 else "fail"))
    await world.live()

    events = [record(stored) for stored in world.events()]
    counts = Counter(one.envelope.event_type for one in events)
    assert (counts["stage.opened"], counts["stage.closed"], counts["loop.done"]) == (2, 2, 2)
    assert counts["step.enter"] == 3
    covered: dict[str, Counter[int]] = {}
    ends: Counter[tuple[str, int]] = Counter()
    held: dict[str, set[int]] = {}
    for one in events:
        content = one.content
        if isinstance(content, FrameDispatched):
            slots = held.setdefault(content.stage_id, set())
            assert content.slot not in slots
            slots.add(content.slot)
            assert len(slots) <= WIDTH
        if isinstance(content, FrameCommitted | FrameFailed | FrameAbandoned):
            held[content.stage_id].discard(content.slot)
            ends[(content.frame_id, content.attempt)] += 1
            if isinstance(content, FrameCommitted) or content.outcome == "final":
                covered.setdefault(content.stage_id, Counter()).update(range(content.start, content.stop))
    assert set(ends.values()) == {1}
    for rows in covered.values():
        assert rows == Counter(range(ROWS))
    assert len(covered) == 2
    loop = world.state().execution.loops["l"]
    assert loop.ended == loop.total == ROWS
    assert not world.state().execution.stages["l"].frames
