"""How many tasks may last: some of Spark's threads stay free, so that a query begins at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

RESERVED = 3
"""One of so many threads is left to queries, and one at least where there are two."""


class Taken:
    """Seats of one user, who gives each back when the task at it has ended, and all at the end."""

    def __init__(self, count: int, give_back: Callable[[int], None]) -> None:
        self.count = count
        self._left = count
        self._give_back = give_back

    def give_back(self) -> None:
        """One of them: a task that takes longer keeps no other seat."""
        self._left -= 1
        self._give_back(1)

    def give_back_all(self) -> None:
        """What is left of them."""
        self._give_back(self._left)


class Seats:
    """Given to those who wait in the order in which they came, and shared by those who want them."""

    def __init__(self, threads: Callable[[], int]) -> None:
        self._threads = threads
        """As many as there are now: executors come and go."""
        self._changed = threading.Condition()
        self._taken = 0
        self._waiting: list[object] = []
        self._users = 0

    @property
    def total(self) -> int:
        """All of them, taken or not."""
        threads = self._threads()
        return max(1, threads - max(1, threads // RESERVED))

    @contextmanager
    def taken(self, wanted: int, *, is_wanted: Callable[[], bool] = lambda: True) -> Iterator[Taken]:
        """At least one, as many as wanted if that leaves some to others; none if nobody wants it any more."""
        ticket = object()
        count = 0
        with self._changed:
            self._waiting.append(ticket)
            try:
                while is_wanted() and not (self._waiting[0] is ticket and self._taken < self.total):
                    self._changed.wait(timeout=0.5)
                if is_wanted():
                    share = -(-self.total // (self._users + len(self._waiting)))
                    count = max(1, min(wanted, share, self.total - self._taken))
            finally:
                self._waiting.remove(ticket)
                self._taken += count
                self._users += 1
                self._changed.notify_all()
        taken = Taken(count, self._give_back)
        try:
            yield taken
        finally:
            with self._changed:
                self._users -= 1
            taken.give_back_all()

    def _give_back(self, count: int) -> None:
        with self._changed:
            self._taken -= count
            self._changed.notify_all()
