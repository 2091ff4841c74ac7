"""Free slots wait at planners, and are given up for what the bus brings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from noetl_core.errors import Unavailable
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_testkit.until import until
from noetl_worker.application import wait_at_planners
from noetl_worker.application.slots import Slots
from noetl_worker.application.wait_at_planners import WaitAtPlanners
from pytest import MonkeyPatch

from .test_slots import ADA, OK, Planner, command, slots_of


class Room:
    """A planner at which somebody waits, as the real ones do it: a new wait ends the one before."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, tuple[CommandKey, ...]]] = []
        self.wait: asyncio.Future[tuple[GrantedCommand, ...]] | None = None
        self.trouble: list[Exception] = []

    @property
    def room(self) -> int:
        return self.asked[-1][0] if self.wait is not None and not self.wait.done() else 0

    def grant(self, *commands: GrantedCommand) -> None:
        assert self.wait is not None
        self.wait.set_result(commands)

    async def ask(self, room: int, held: Collection[CommandKey]) -> tuple[GrantedCommand, ...]:
        if self.trouble:
            raise self.trouble.pop()
        if self.wait is not None and not self.wait.done():
            self.wait.set_result(())
        if room == 0:
            return ()
        self.asked.append((room, tuple(held)))
        self.wait = asyncio.get_running_loop().create_future()
        return await self.wait


class Rooms:
    """All planners."""

    def __init__(self, *addresses: str) -> None:
        self.at = {address: Room() for address in addresses}

    async def addresses(self) -> Sequence[str]:
        return list(self.at)

    async def wait_for_commands(
        self, address: str, worker: Worker, *, room: int, held: Collection[CommandKey], seconds: float
    ) -> tuple[GrantedCommand, ...]:
        return await self.at[address].ask(room, held)


@asynccontextmanager
async def waiting(rooms: Rooms, slots: Slots) -> AsyncIterator[WaitAtPlanners]:
    waits = WaitAtPlanners(rooms, slots, worker=ADA, addresses=rooms.addresses, every_seconds=0.01)
    running = asyncio.create_task(waits.run(lambda: None))
    yield waits
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def held_back() -> tuple[asyncio.Event, Any]:
    go = asyncio.Event()

    async def run(command: GrantedCommand) -> Any:
        await go.wait()
        return OK

    return go, run


async def test_what_is_granted_runs_and_the_other_slots_wait_on() -> None:
    planner, rooms = Planner(), Rooms("one")
    go, run = held_back()
    slots, _ = slots_of(planner, run, size=3)
    async with waiting(rooms, slots):
        await until(lambda: rooms.at["one"].room == 3)
        rooms.at["one"].grant(command("a"))

        await until(lambda: rooms.at["one"].asked[1:] == [(2, (command("a").key,))])
        go.set()
        await until(lambda: planner.completed == [("a", "ok")])


async def test_slots_are_shared_out_among_planners() -> None:
    rooms = Rooms("one", "two")
    slots, _ = slots_of(Planner(), size=4)
    async with waiting(rooms, slots):
        await until(lambda: [room.room for room in rooms.at.values()] == [2, 2])


async def test_what_the_bus_brings_gets_the_slots_that_wait_and_no_more_run_than_there_are() -> None:
    planner, rooms = Planner(command("a"), command("b")), Rooms("one")
    go, run = held_back()
    slots, _ = slots_of(planner, run, size=2, clock=asyncio.get_running_loop().time)
    async with waiting(rooms, slots):
        await until(lambda: rooms.at["one"].room == 2)

        assert not await slots.claim([command("a").key])
        await until(lambda: rooms.at["one"].room == 1)
        assert not await slots.claim([command("b").key])

        assert slots.busy == 2
        assert rooms.at["one"].room == 0
        go.set()
        await until(lambda: rooms.at["one"].room > 0)


async def test_a_command_that_is_granted_while_the_bus_brings_others_keeps_its_slot() -> None:
    planner, rooms = Planner(command("a"), command("b")), Rooms("one")
    _, run = held_back()
    slots, _ = slots_of(planner, run, size=2, clock=asyncio.get_running_loop().time)
    async with waiting(rooms, slots):
        await until(lambda: rooms.at["one"].room == 2)
        rooms.at["one"].grant(command("c"))

        left = await slots.claim([command("a").key, command("b").key])

        assert left == {command("b").key}
        assert {key.command_id for key in slots.held} == {"a", "c"}
        await slots.drain(seconds=0)


async def test_a_planner_that_is_away_is_asked_again_and_one_that_is_gone_is_not(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(wait_at_planners, "RETRY_SECONDS", (0.0,))
    rooms = Rooms("one", "two")
    rooms.at["one"].trouble.append(Unavailable("away"))
    slots, _ = slots_of(Planner(), size=4)
    async with waiting(rooms, slots):
        await until(lambda: all(room.room for room in rooms.at.values()))
        gone = rooms.at.pop("two")
        gone.grant()

        await until(lambda: rooms.at["one"].room > 0 and slots.room + rooms.at["one"].room == 4)


async def test_a_worker_that_stops_waits_no_more_and_runs_what_was_claimed_for_it_meanwhile() -> None:
    planner, rooms = Planner(), Rooms("one")
    slots, _ = slots_of(planner, size=2)
    async with waiting(rooms, slots) as waits:
        await until(lambda: rooms.at["one"].room == 2)
        rooms.at["one"].grant(command("a"))
        await waits.stop()

        assert slots.room == 2 - slots.busy
        await until(lambda: planner.completed == [("a", "ok")])
        assert rooms.at["one"].room == 0


async def test_what_a_worker_has_had_is_not_begun_again() -> None:
    planner = Planner(command("a"))
    slots, _ = slots_of(planner)
    await slots.claim([command("a").key])
    slots.take([command("a")], 0.0)
    assert slots.busy == 1
    await until(lambda: planner.completed == [("a", "ok")])

    slots.take([command("a")], 0.0)

    assert slots.busy == 0
