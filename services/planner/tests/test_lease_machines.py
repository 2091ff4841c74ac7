"""Claim, heartbeat, commit and reap in any order, with crashes and late messages between them: who holds what is plain.

A model that knows only what it was answered, and the clock, says what every answer has to be.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from noetl_core.commands.events import CallDone
from noetl_core.errors import NoetlError
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_core.ports.frames import CommittedRows, GrantedFrame, StageSlot
from noetl_core.stages.events import FrameCommitted
from noetl_testkit.planning import Planning

T = TypeVar("T")
Holding = tuple[str, int, str]
"""A frame or command, the attempt at it, and whose that is."""

WORKERS = tuple(Worker(worker_id=name) for name in ("ada", "bob", "eve"))
LEASE = 30.0
DONE: dict[str, Any] = {
    "status": "ok",
    "reference": {"type": "object_store", "ref_id": "r", "uri": "noetl://r"},
    "parent_ref": None,
    "context": {},
}
WIDTH, ROWS = 2, 7
FRAMES = f"""
workflow:
- step: each
  loop:
    in: "{{{{ range({ROWS}) | list }}}}"
    spec:
      mode: parallel
      max_in_flight: {WIDTH}
      engine: inline
      frame: {{max_rows: 2, max_seconds: 86400, lease_seconds: {LEASE:g}, heartbeat_seconds: 5, max_attempts: 1000}}
  tool: {{kind: noop}}
"""
ITEMS = """
workflow:
- step: each
  loop: {in: [1, 2, 3, 4, 5], spec: {mode: parallel, max_in_flight: 3}}
  tool: {kind: noop}
"""


@dataclass(slots=True)
class Model:
    """Who may go on, by what was answered."""

    held: dict[str, tuple[int, str, datetime]] = field(default_factory=dict)
    """Attempt, worker and end of the lease of everything that is open."""
    granted: list[Holding] = field(default_factory=list)
    delivered: set[Holding] = field(default_factory=set)

    def counts(self, holding: Holding) -> bool:
        name, attempt, worker = holding
        return name in self.held and self.held[name][:2] == (attempt, worker)

    def grant(self, holding: Holding, *, until: datetime) -> None:
        name, attempt, worker = holding
        if self.counts(holding):
            return  # asked for again by the same worker: the same grant, and no longer than before
        assert name not in self.held, f"{name} is granted to {worker}, although {self.held.get(name)} has it"
        assert attempt == 1 + max((one[1] for one in self.granted if one[0] == name), default=0)
        self.held[name] = (attempt, worker, until)
        self.granted.append(holding)

    def extend(self, holding: Holding, *, until: datetime) -> None:
        self.held[holding[0]] = (holding[1], holding[2], until)

    def silent(self, name: str, now: datetime) -> bool:
        return name in self.held and self.held[name][2] <= now


class LeaseMachine(RuleBasedStateMachine):
    """What frames and commands have in common; planners come and go, and the log stays."""

    playbook = ""
    abandoned_event = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.planning: Planning = self.wait(_started(self.playbook))
        self.model = Model()
        self.seen_events = 0

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    @property
    def now(self) -> datetime:
        return self.planning.now

    def lease_end(self) -> datetime:
        return self.now + timedelta(seconds=LEASE)

    @rule(seconds=st.sampled_from([1, 10, 29, 31, 100]))
    def time_passes(self, seconds: int) -> None:
        self.planning.pass_time(seconds)

    @rule()
    def the_planner_dies(self) -> None:
        self.wait(self.planning.replace_planner())

    @rule(place=st.integers(0, 1000))
    def a_message_comes_again(self, place: int) -> None:
        events = self.planning.log.streams[self.planning.execution_id].events
        self.planning.actors.take(self.planning.execution_id, events[place % len(events)])

    @precondition(lambda self: self.model.granted)
    @rule(which=st.integers(0, 1000))
    def a_worker_is_heard_of(self, which: int) -> None:
        holding = self.model.granted[which % len(self.model.granted)]
        counts = self.model.counts(holding)
        assert self.wait(self.beat(holding)) is counts
        if counts:
            self.model.extend(holding, until=self.lease_end())

    @precondition(lambda self: self.model.granted)
    @rule(which=st.integers(0, 1000))
    def a_worker_delivers(self, which: int) -> None:
        """In time or late, once or again: only the attempt that is open counts, and nothing else is taken."""
        holding = self.model.granted[which % len(self.model.granted)]
        try:
            self.wait(self.deliver(holding))
        except NoetlError:
            assert not self.model.counts(holding)
        else:
            assert self.model.counts(holding) or holding in self.model.delivered
            self.model.delivered.add(holding)
            if self.model.counts(holding):
                del self.model.held[holding[0]]

    @rule()
    def silence_is_looked_for(self) -> None:
        self.wait(self.reap())
        self.note_abandoned()

    def note_abandoned(self) -> None:
        events = self.planning.events()
        for one in events[self.seen_events :]:
            if one.envelope.event_type == self.abandoned_event:
                name = self.name_of(one.content)
                assert self.model.silent(name, self.now), f"{name} was given up, although it was heard of"
                del self.model.held[name]
        self.seen_events = len(events)

    @invariant()
    def nothing_is_committed_twice(self) -> None:
        ends = Counter(name for name, _, _ in self.model.delivered)
        assert all(count == 1 for count in ends.values())

    def teardown(self) -> None:
        try:
            self.wait(self.finish())
            assert self.planning.types().count("loop.done") == 1
            assert self.planning.types()[-1] == "playbook.completed"
            self.check_end()
        finally:
            self.wait(self.planning.actors.stop())
            self.loop.close()

    async def finish(self) -> None:
        """Everybody who holds something falls silent, and one worker does the rest."""
        for _ in range(100):
            if self.planning.types()[-1] == "playbook.completed":
                return
            self.planning.pass_time(1000)
            await self.reap()
            self.note_abandoned()
            await self.work_off()

    async def beat(self, holding: Holding) -> bool:
        raise NotImplementedError

    async def deliver(self, holding: Holding) -> None:
        raise NotImplementedError

    async def reap(self) -> None:
        raise NotImplementedError

    async def work_off(self) -> None:
        raise NotImplementedError

    def name_of(self, content: Any) -> str:
        raise NotImplementedError

    def check_end(self) -> None:
        """What a kind of work adds."""


async def _started(playbook: str) -> Planning:
    return await Planning().start(playbook)


class FrameLeases(LeaseMachine):
    """Frames of a stage, claimed by slot; the leases end with the deadlines of the execution."""

    playbook = FRAMES
    abandoned_event = "frame.abandoned"

    def __init__(self) -> None:
        super().__init__()
        self.frames: dict[Holding, GrantedFrame] = {}
        self.stage_id = self.planning.state.execution.stages["each"].stage_id

    @rule(slot=st.integers(0, WIDTH - 1), worker=st.sampled_from(WORKERS))
    def a_frame_is_claimed(self, slot: int, worker: Worker) -> None:
        self.wait(self.claim(slot, worker))

    async def claim(self, slot: int, worker: Worker) -> GrantedFrame | None:
        asked = StageSlot(execution_id=self.planning.execution_id, stage_id=self.stage_id, slot=slot)
        (claim,) = await self.planning.actors.claim_frames(worker, [asked])
        if claim.frame is not None:
            holding = (claim.frame.key.frame_id, claim.frame.key.attempt, worker.worker_id)
            self.model.grant(holding, until=self.lease_end())
            self.frames[holding] = claim.frame
        return claim.frame

    @invariant()
    def no_more_frames_are_held_than_there_are_slots(self) -> None:
        assert len(self.model.held) <= WIDTH
        slots = [self.frames[name, attempt, worker].rows.slot for name, (attempt, worker, _) in self.model.held.items()]
        assert len(set(slots)) == len(slots)

    async def beat(self, holding: Holding) -> bool:
        key = self.frames[holding].key
        return not (await self.planning.actors.heartbeat_frames(Worker(worker_id=holding[2]), [key])).lost

    async def deliver(self, holding: Holding) -> None:
        frame = self.frames[holding]
        rows = CommittedRows(result=DONE, stop=frame.rows.stop, success=frame.rows.stop - frame.rows.start, failed=0)
        await self.planning.actors.commit_frame(Worker(worker_id=holding[2]), frame.key, rows, wants_next=False)

    async def reap(self) -> None:
        await self.planning.actors.pass_deadlines(self.planning.execution_id, through=self.now)

    async def work_off(self) -> None:
        for slot in range(WIDTH):
            frame = await self.claim(slot, WORKERS[0])
            if frame is not None:
                holding = (frame.key.frame_id, frame.key.attempt, WORKERS[0].worker_id)
                await self.deliver(holding)
                del self.model.held[holding[0]]

    def name_of(self, content: Any) -> str:
        return str(content.frame_id)

    def check_end(self) -> None:
        committed = [one.content for one in self.planning.events() if isinstance(one.content, FrameCommitted)]
        rows = Counter(row for one in committed for row in range(one.start, one.stop))
        assert rows == Counter(range(ROWS))


class CommandLeases(LeaseMachine):
    """Items of a loop, one command each; candidates of the reaper may be as old as they like."""

    playbook = ITEMS
    abandoned_event = "command.abandoned"

    def __init__(self) -> None:
        super().__init__()
        self.commands: dict[Holding, GrantedCommand] = {}
        self.candidates: list[tuple[str, int, datetime]] = []

    @rule(which=st.integers(0, 1000), worker=st.sampled_from(WORKERS))
    def a_command_is_claimed(self, which: int, worker: Worker) -> None:
        keys = self.planning.all_issued("each")
        self.wait(self.claim(keys[which % len(keys)], worker))

    async def claim(self, key: CommandKey, worker: Worker) -> GrantedCommand | None:
        (outcome,) = await self.planning.actors.claim(worker, [key])
        if outcome.command is not None:
            holding = (_item(outcome.command), outcome.command.attempt, worker.worker_id)
            self.model.grant(holding, until=self.lease_end())
            self.commands[holding] = outcome.command
        return outcome.command

    @rule()
    def silence_is_noted_for_later(self) -> None:
        self.candidates = self.open_commands()

    @precondition(lambda self: self.candidates)
    @rule(which=st.integers(0, 1000))
    def a_stale_candidate_is_given_up(self, which: int) -> None:
        self.wait(self.abandon(*self.candidates[which % len(self.candidates)]))
        self.note_abandoned()

    def open_commands(self) -> list[tuple[str, int, datetime]]:
        return [
            (command.command_id, command.aggregate_version, command.lease_until)
            for command in self.planning.state.commands.values()
            if command.lease_until is not None
        ]

    async def abandon(self, command_id: str, version: int, lease_until: datetime) -> None:
        try:
            await self.planning.actors.abandon(
                CommandKey(execution_id=self.planning.execution_id, command_id=command_id),
                expected_aggregate_version=version,
                lease_until=lease_until,
                reclaimer="urn:test:reaper",
            )
        except NoetlError:
            return  # somebody was heard of, or was first, or it is too early

    async def beat(self, holding: Holding) -> bool:
        key = self.commands[holding].key
        return not (await self.planning.actors.heartbeat(Worker(worker_id=holding[2]), [key])).lost

    async def deliver(self, holding: Holding) -> None:
        key = self.commands[holding].key
        await self.planning.actors.complete(Worker(worker_id=holding[2]), key, DONE, wants_next=False)

    async def reap(self) -> None:
        for candidate in self.open_commands():
            await self.abandon(*candidate)

    async def work_off(self) -> None:
        for key in self.planning.all_issued("each"):
            command = await self.claim(key, WORKERS[0])
            if command is not None:
                holding = (_item(command), command.attempt, WORKERS[0].worker_id)
                await self.deliver(holding)
                self.model.held.pop(holding[0], None)

    def name_of(self, content: Any) -> str:
        return str(content.loop_iteration_index)

    def check_end(self) -> None:
        done = [one.content for one in self.planning.events() if isinstance(one.content, CallDone)]
        indexes = Counter(one.loop_iteration_index for one in done)
        assert indexes == Counter(range(5))


def _item(command: GrantedCommand) -> str:
    assert command.item is not None
    return str(command.item.index)


STEPS = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestFrameLeases = FrameLeases.TestCase
TestFrameLeases.settings = STEPS
TestCommandLeases = CommandLeases.TestCase
TestCommandLeases.settings = STEPS
