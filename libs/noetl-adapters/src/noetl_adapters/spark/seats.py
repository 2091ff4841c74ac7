"""How many tasks may last: some of Spark's threads stay free, so that a query begins at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from noetl_adapters.spark.seat_shares import SeatShares

RESERVED: Final = 3
"""One of so many threads is left to queries, and one at least where there are two."""
LOOK_SECONDS: Final = 0.5
"""How soon it is noticed that somebody no longer waits, or that there are more threads."""


class Taken:
    """Seats of one user, who gives each back when the task at it has ended, and all at the end."""

    def __init__(self, count: int, give_back: Callable[[int, bool], None]) -> None:
        self.count = count
        self._left = count
        self._give_back = give_back
        self._changing = threading.Lock()
        """Tasks end side by side: a seat that is given back twice would be a thread that queries lack."""

    def give_back(self, *, comes_again: bool = False) -> None:
        """One of them: a task that takes longer keeps no other seat. Its user may want it again at once."""
        self._give(1, comes_again=comes_again)

    def give_back_all(self) -> None:
        """What is left of them."""
        self._give(self.count)

    def _give(self, count: int, *, comes_again: bool = False) -> None:
        with self._changing:
            given = min(count, self._left)
            self._left -= given
        self._give_back(given, comes_again)


class Seats:
    """Given to threads that wait for them, when it is their turn."""

    def __init__(self, threads: Callable[[], int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        """As many as there are now: executors come and go."""
        self._clock = clock
        self._changed = threading.Condition()
        self._shares = SeatShares()

    @property
    def total(self) -> int:
        """All of them, taken or not."""
        threads = self._threads()
        return max(1, threads - max(1, threads // RESERVED))

    @contextmanager
    def taken(self, wanted: int, *, user: str, is_wanted: Callable[[], bool] = lambda: True) -> Iterator[Taken]:
        """At least one, as many as wanted if that leaves some to other users; none if nobody wants it any more."""
        ticket = object()
        with self._changed:
            self._shares.come(ticket, user, now=self._clock())
        try:
            count = self._wait(ticket, wanted, is_wanted=is_wanted)
            taken = Taken(count, lambda given, comes_again: self._give_back(user, given, comes_again))
            try:
                yield taken
            finally:
                taken.give_back_all()
        finally:
            with self._changed:
                self._shares.go(ticket, user, now=self._clock())
                self._changed.notify_all()

    def _wait(self, ticket: object, wanted: int, *, is_wanted: Callable[[], bool]) -> int:
        with self._changed:
            while is_wanted():
                total, now = self.total, self._clock()
                if self._shares.taken < total and self._shares.next(total=total, now=now) is ticket:
                    self._changed.notify_all()
                    return self._shares.take(ticket, wanted, total=total, now=now)
                self._changed.wait(timeout=LOOK_SECONDS)
            return 0

    def _give_back(self, user: str, count: int, comes_again: bool) -> None:
        with self._changed:
            self._shares.give_back(user, count, now=self._clock(), comes_again=comes_again)
            self._changed.notify_all()
