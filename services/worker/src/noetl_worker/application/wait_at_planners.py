"""Free slots wait at every planner, so that a command is claimed when it is issued; hints on the bus bring the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from noetl_core.errors import NoetlError
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_servicekit.logging import get_logger

from noetl_worker.application.slots import Slots

logger = get_logger()

WAIT_SECONDS = 5.0
QUIET_SECONDS = 0.1
"""While the bus brings hints, slots are for those: they have waited for longer."""
STEP_ASIDE_SECONDS = 2.0
RETRY_SECONDS = (1.0, 2.0, 5.0, 15.0)


class WaitingRooms(Protocol):
    """The port `WaitingRoom` of each planner, by its address."""

    async def wait_for_commands(
        self, address: str, worker: Worker, *, room: int, held: Collection[CommandKey], seconds: float
    ) -> tuple[GrantedCommand, ...]:
        """See `WaitingRoom`."""
        ...


class WaitAtPlanners:
    """One wait at each planner; the slots are shared out among them."""

    def __init__(
        self,
        rooms: WaitingRooms,
        slots: Slots,
        *,
        worker: Worker,
        addresses: Callable[[], Awaitable[Sequence[str]]],
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rooms = rooms
        self._slots = slots
        self._worker = worker
        self._addresses = addresses
        self._every_seconds = every_seconds
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, None] = {}
        """Where an answer is on its way, in the order of asking: a simulation has no other than the seed's."""
        self._idle = asyncio.Event()
        self._is_stopped = False
        slots.step_aside = self.step_aside

    async def run(self, beat: Callable[[], None]) -> None:
        """Wait wherever somebody plans, as long as it does."""
        try:
            while True:
                beat()
                try:
                    self._follow(await self._addresses())
                except NoetlError as exc:
                    logger.debug("worker.wait_failed", reason=exc.message)
                # Until somebody plans there is nobody to wait at, and soon there may be.
                await asyncio.sleep(self._every_seconds if self._tasks else min(self._every_seconds, RETRY_SECONDS[0]))
        finally:
            await self._give_up(list(self._tasks))

    async def step_aside(self) -> None:
        """Have the reserved slots back: planners answer at once, with nothing or with what was just claimed."""
        await asyncio.gather(*(self._withdraw(address) for address in tuple(self._waiting)))
        with suppress(TimeoutError):  # then they are free when the wait is over
            async with asyncio.timeout(STEP_ASIDE_SECONDS):
                while self._waiting:
                    self._idle.clear()
                    await self._idle.wait()

    async def stop(self) -> None:
        """Wait no more; what was claimed meanwhile runs."""
        self._is_stopped = True
        await self.step_aside()

    def _follow(self, addresses: Sequence[str]) -> None:
        for address in [address for address, task in self._tasks.items() if task.done()]:
            self._tasks.pop(address).result()  # a defect, which the supervisor hears of
        for address in [address for address in dict.fromkeys(addresses) if address not in self._tasks]:
            self._tasks[address] = asyncio.create_task(self._wait_at(address), name=f"wait at {address}")
        for address in [address for address in self._tasks if address not in addresses]:
            if address not in self._waiting:  # whoever has no shards grants nothing, and answers soon
                self._tasks.pop(address).cancel()

    async def _give_up(self, addresses: Sequence[str]) -> None:
        tasks = [self._tasks.pop(address) for address in addresses]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_at(self, address: str) -> None:
        failures = 0
        while not self._is_stopped:
            if not await self._is_time():
                continue
            room = max(1, self._slots.room // max(1, len(self._tasks) - len(self._waiting)))
            try:
                await self._wait_once(address, room)
                failures = 0
                await asyncio.sleep(0)  # what has come begins before the next wait is written
            except NoetlError as exc:
                logger.debug("worker.wait_failed", reason=exc.message)
                await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                failures += 1

    async def _is_time(self) -> bool:
        """Whether there is room and the bus is quiet; waits for a while if not."""
        if self._slots.room <= 0:
            await self._slots.wait_for_change(WAIT_SECONDS)
            return False
        hinted_ago = self._clock() - self._slots.hinted_at
        if hinted_ago < QUIET_SECONDS:
            await asyncio.sleep(QUIET_SECONDS - hinted_ago)
            return False
        return True

    async def _wait_once(self, address: str, room: int) -> None:
        asked_at = self._clock()
        commands: tuple[GrantedCommand, ...] = ()
        self._waiting[address] = None
        try:
            with self._slots.reserve(room):
                commands = await self._rooms.wait_for_commands(
                    address, self._worker, room=room, held=self._slots.held, seconds=WAIT_SECONDS
                )
        finally:
            self._slots.take(commands, asked_at)  # at once: these slots are taken
            self._waiting.pop(address, None)
            self._idle.set()

    async def _withdraw(self, address: str) -> None:
        try:
            await self._rooms.wait_for_commands(address, self._worker, room=0, held=(), seconds=0.0)
        except NoetlError as exc:
            logger.debug("worker.wait_failed", reason=exc.message)
