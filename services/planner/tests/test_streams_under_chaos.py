"""Streams with two planners, killed workers, chunks told twice and to anybody: each counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from noetl_core.append import PlacedEvent
from noetl_core.canonical import decode
from noetl_core.errors import InvalidInput, LeaseLost, NoetlError
from noetl_core.payloads import refer_to
from noetl_core.ports.commands import CommandKey, GrantedCommand, ToldChunk, Worker
from noetl_core.streams.state import MAX_WAITING
from noetl_testkit.chaos import ChaosWorld
from noetl_testkit.until import until

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chaos}
workflow:
- step: read
  tool: {kind: postgres, command: select 1, spec: {stream: {chunk_rows: 10}}}
  next: {arcs: [{step: take, on: call.partial}, {step: after}]}
- {step: take, tool: {kind: noop}, next: {arcs: [{step: after}]}}
- {step: after, tool: {kind: noop}}
"""
CHUNKS = 9
OK: dict[str, Any] = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}


def chunk_of(index: int, *, call: int = 0) -> ToldChunk:
    rows = refer_to(f"{call}/{index}".encode(), tenant_id="t", organization_id="o", media_type="application/json")
    last = index == CHUNKS - 1
    return ToldChunk(task="read_task", call=call, chunk_index=index, row_count=10, has_more=not last, rows=rows)


class World(ChaosWorld):
    """Workers that tell chunks, a few at a time, and die now and then."""

    def __init__(self, seed: int, *, trouble: float = 0.1) -> None:
        super().__init__(seed, trouble=trouble)
        self.reading: dict[str, int] = {}
        self.longest_queue = 0

    async def begin(self) -> None:
        await self.begin_with(PLAYBOOK)

    def deliver(self, events: Sequence[PlacedEvent]) -> None:
        super().deliver(events)
        queue = self.state().execution.streams.get("read")
        self.longest_queue = max(self.longest_queue, len(queue.waiting) if queue else 0)

    async def work_once(self, worker: Worker) -> None:
        """Claim whatever was hinted at, and run it; a command that streams goes on with the worker's next turn."""
        keys = [
            CommandKey(execution_id=self.execution_id, command_id=str(hint["command_id"]))
            for hint in (decode(one.body) for one in self.log.hints)
            if isinstance(hint, dict)
        ]
        try:
            outcomes = await self.any_planner().claim(worker, self.chance.sample(keys, min(2, len(keys))))
        except NoetlError:
            return
        for outcome in outcomes:
            command = outcome.command
            while command is not None:
                command = await self.run(worker, command)

    async def run(self, worker: Worker, command: GrantedCommand) -> GrantedCommand | None:
        if self.chance.random() < 0.1:
            return None  # The worker was killed.
        if command.step == "read" and not await self.stream(worker, command):
            return None
        following: GrantedCommand | None = None
        for _ in range(self.chance.choice((1, 2))):
            try:
                completion = await self.any_planner().complete(
                    worker, command.key, OK, wants_next=self.chance.random() < 0.7
                )
                following = completion.next or following
            except NoetlError:
                continue
        return following

    async def stream(self, worker: Worker, command: GrantedCommand) -> bool:
        """Tell a few chunks, beginning where earlier attempts stopped; True when all have been told."""
        place = self.reading.get(command.key.command_id, command.streamed.chunk)
        for index in range(place, min(place + self.chance.choice((1, 2, 5)), CHUNKS)):
            for _ in range(self.chance.choice((1, 1, 3))):
                try:
                    if not await self.any_planner().tell_chunk(worker, command.key, chunk_of(index)):
                        return False
                except NoetlError:
                    return False
            self.reading[command.key.command_id] = index + 1
        return self.reading.get(command.key.command_id, place) == CHUNKS


@pytest.mark.parametrize("seed", range(25))
async def test_every_chunk_is_told_and_taken_once_and_in_order_whatever_goes_wrong(seed: int) -> None:
    world = World(seed)
    await world.begin()
    await world.live()

    envelopes = [event.envelope() for event in world.events()]
    told = [one.meta["chunk_index"] for one in envelopes if one.event_type == "call.partial"]
    taken = [
        one.meta["chunk"]["chunk_index"]  # type: ignore[index,call-overload]
        for one in envelopes
        if one.event_type == "step.enter" and one.node_name == "take"
    ]
    kinds = Counter(one.event_type for one in envelopes)
    exits = Counter(one.node_name for one in envelopes if one.event_type == "step.exit")
    assert told == list(range(CHUNKS))
    assert taken == list(range(CHUNKS))
    assert kinds["step.chunk"] == CHUNKS
    assert exits == {"read": 1, "take": CHUNKS, "after": 1}
    assert kinds["playbook.completed"] == 1
    assert world.longest_queue <= MAX_WAITING


async def quiet_world() -> tuple[World, Worker, GrantedCommand]:
    world = World(1, trouble=0.0)
    await world.begin()
    world.planners = world.planners[:1]
    planner, worker = world.planners[0], Worker(worker_id="w")
    planner.take(world.execution_id, world.events()[0])
    await until(lambda: world.log.hints)
    hint = decode(world.log.hints[0].body)
    assert isinstance(hint, dict)
    key = CommandKey(execution_id=world.execution_id, command_id=str(hint["command_id"]))
    (outcome,) = await planner.claim(worker, [key])
    assert outcome.command is not None
    return world, worker, outcome.command


async def test_a_worker_is_told_to_wait_while_too_many_chunks_do_and_goes_on_when_one_is_taken() -> None:
    world, worker, command = await quiet_world()
    planner = world.planners[0]
    index = 0
    while await planner.tell_chunk(worker, command.key, chunk_of(index)):
        index += 1
    before = len(world.events())

    assert index == MAX_WAITING + 1  # one is being taken
    assert not await planner.tell_chunk(worker, command.key, chunk_of(index))
    assert len(world.events()) == before
    take = next(one for one in world.state().commands.values() if one.step == "take")
    key = CommandKey(execution_id=world.execution_id, command_id=take.command_id)
    (claimed,) = await planner.claim(worker, [key])
    assert claimed.command is not None
    assert claimed.command.chunk is not None
    assert claimed.command.chunk.scalars == {"chunk_index": 0, "row_count": 10, "has_more": True}
    await planner.complete(worker, key, OK, wants_next=False)

    assert await planner.tell_chunk(worker, command.key, chunk_of(index))
    await planner.stop()


async def test_a_chunk_out_of_turn_or_of_a_stranger_changes_nothing() -> None:
    world, worker, command = await quiet_world()
    planner = world.planners[0]
    assert await planner.tell_chunk(worker, command.key, chunk_of(0))
    before = len(world.events())

    with pytest.raises(InvalidInput):
        await planner.tell_chunk(worker, command.key, chunk_of(5))
    with pytest.raises(LeaseLost):
        await planner.tell_chunk(Worker(worker_id="eve"), command.key, chunk_of(1))
    assert await planner.tell_chunk(worker, command.key, chunk_of(0))  # again: it is known
    assert len(world.events()) == before
    await planner.stop()
