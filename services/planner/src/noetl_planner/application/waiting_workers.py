"""Workers that wait here for commands: what a turn issues is claimed for one of them in the same append."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker

LEASE_SHARE = 0.125
"""How long a wait may take: its worker counts the lease from before it asked."""

GiveAgain = Callable[[Worker, CommandKey], GrantedCommand | None]


@dataclass(slots=True, kw_only=True, eq=False)
class Waiter:
    """One wait of one worker."""

    worker: Worker
    room: int
    granted: list[GrantedCommand] = field(default_factory=list)
    in_turns: int = 0
    """Commands of turns whose appends are under way."""
    is_over: bool = False
    """Nothing more is claimed for it: it is answered as soon as the appends under way have ended."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self) -> None:
        """Answer if there is nothing left to wait for."""
        if self.is_over and self.in_turns == 0:
            self.answered.set()


class WaitingWorkers:
    """First come, first served, one command each in turns, but for those whom a rank puts first.

    A claim that its worker may not have heard of is remembered as long as a lease lasts, and told again when the worker
    comes without it: answers get lost, and whoever claimed it may have been another planner.
    """

    def __init__(self, *, lease_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._pools: dict[str, deque[Waiter]] = {}
        self._waiters: dict[str, Waiter] = {}
        self._unheard: dict[str, dict[CommandKey, float]] = {}
        self._is_closed = False

    async def wait(
        self, worker: Worker, *, room: int, held: Collection[CommandKey], seconds: float, again: GiveAgain
    ) -> tuple[GrantedCommand, ...]:
        """Wait until something is claimed for the worker, or no longer than this."""
        self._end(self._waiters.pop(worker.worker_id, None))
        if room <= 0 or self._is_closed:
            return ()
        unheard = self._unheard.pop(worker.worker_id, {})
        missed = tuple(given for key in unheard if key not in held and (given := again(worker, key)) is not None)
        if missed:
            self._remember(worker.worker_id, [command.key for command in missed])
            return missed
        waiter = self._waiters[worker.worker_id] = Waiter(worker=worker, room=room)
        self._pools.setdefault(worker.pool, deque()).append(waiter)
        try:
            async with asyncio.timeout(min(seconds, self._lease_seconds * LEASE_SHARE)):
                await waiter.answered.wait()
        except TimeoutError:
            self._end(waiter)
            await waiter.answered.wait()  # for an append under way, which has a deadline of its own
        finally:
            waiter.is_over = True
            self._leave(waiter)
        return tuple(waiter.granted)

    def pick(self, pool: str, *, rank: Callable[[Worker], int | None] = lambda worker: 0) -> Waiter | None:
        """Somebody with room for a command of this pool; to be told with `hand_over` or `put_back`.

        The lowest rank first, of equals whose turn it is; None is for who may not have it.
        """
        waiter, lowest = None, None
        for one in self._pools.get(pool, ()):
            if one.is_over or one.room <= 0 or (found := rank(one.worker)) is None:
                continue
            if lowest is None or found < lowest:
                waiter, lowest = one, found
            if lowest == 0:
                break
        if waiter is None:
            return None
        self._pools[pool].remove(waiter)
        self._pools[pool].append(waiter)
        waiter.room -= 1
        waiter.in_turns += 1
        return waiter

    def hand_over(self, waiter: Waiter, command: GrantedCommand) -> None:
        """The append has claimed it; the worker hears of it, and of nothing that comes later."""
        waiter.granted.append(command)
        self._remember(waiter.worker.worker_id, [command.key])
        waiter.in_turns -= 1
        self._end(waiter)

    def put_back(self, waiter: Waiter) -> None:
        """Nothing was appended, as far as is known."""
        waiter.room += 1
        waiter.in_turns -= 1
        waiter.settle()

    def found(self, worker_id: str, key: CommandKey) -> None:
        """The log has a claim that was not made here: its worker is asked whether it knows."""
        self._remember(worker_id, [key])
        self._end(self._waiters.get(worker_id))

    def close(self) -> None:
        """Send everybody away."""
        self._is_closed = True
        for waiter in self._waiters.values():
            self._end(waiter)

    def _end(self, waiter: Waiter | None) -> None:
        if waiter is not None:
            waiter.is_over = True
            waiter.settle()

    def _leave(self, waiter: Waiter) -> None:
        if self._waiters.get(waiter.worker.worker_id) is waiter:
            del self._waiters[waiter.worker.worker_id]
        waiting = self._pools.get(waiter.worker.pool)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
        if not waiting:
            self._pools.pop(waiter.worker.pool, None)

    def _remember(self, worker_id: str, keys: Collection[CommandKey]) -> None:
        now = self._clock()
        for known, claims in list(self._unheard.items()):
            fresh = {key: until for key, until in claims.items() if until > now}
            if fresh:
                self._unheard[known] = fresh
            else:
                del self._unheard[known]
        self._unheard.setdefault(worker_id, {}).update(dict.fromkeys(keys, now + self._lease_seconds))


def nobody_waits() -> WaitingWorkers:
    """For planners that no worker reaches."""
    return WaitingWorkers(lease_seconds=0.0)
