"""Whose turn it is when a seat is free, and how many seats they get: each user is served with all of its stages.

Who has fewest seats is next, then who has had least of them, in seconds. What somebody has had while nobody else was
there is not held against them: whoever comes begins with as much as the one who has had least of those that are here.
Whoever gives seats back and says that there is more to do is about to come again, and is waited for, for a moment,
before somebody who has a share already gets another one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

RETURN_SECONDS: Final = 0.5
"""From the end of a job to the next one of its stage, by way of the worker; on a busy machine."""


@dataclass(slots=True, kw_only=True, eq=False)
class _User:
    since: float
    """Up to when its seconds are counted."""
    tickets: int = 0
    """How often it waits for seats, or has some, or has had some and was not told to go yet."""
    waiting: int = 0
    """How many of them wait."""
    seats: int = 0
    seconds: float = 0.0
    """Of all of its seats together."""
    left_at: float = -math.inf
    """When it last gave a seat back to come again."""

    def count(self, now: float) -> None:
        self.seconds += self.seats * (now - self.since)
        self.since = now

    def is_expected(self, now: float) -> bool:
        return not self.seats and not self.waiting and now - self.left_at < RETURN_SECONDS


class SeatShares:
    """Knows no clock and no threads: both are its user's."""

    def __init__(self) -> None:
        self._users: dict[str, _User] = {}
        self._waiting: dict[Hashable, str] = {}
        """Users by their tickets, in the order in which they came."""
        self.taken = 0

    def come(self, ticket: Hashable, user: str, *, now: float) -> None:
        """Somebody wants seats, and waits for them."""
        self._count(now)
        least = min((one.seconds for one in self._users.values() if one.tickets), default=0.0)
        known = self._users.setdefault(user, _User(since=now))
        if not known.tickets:
            known.seconds = max(known.seconds, least)
        known.tickets += 1
        known.waiting += 1
        self._waiting[ticket] = user

    def next(self, *, total: int, now: float) -> Hashable:
        """The ticket that is served before all others, the first of equals; None if nobody waits.

        Nobody, too, while somebody is expected who would come before all that wait.
        """

        def rank(ticket: Hashable) -> tuple[int, float]:
            user = self._users[self._waiting[ticket]]
            return user.seats, user.seconds

        self._count(now)
        first = min(self._waiting, key=rank, default=None)
        if first is None or self._users[self._waiting[first]].seats < self._share(total, now):
            return first
        return None if any(one.is_expected(now) for one in self._users.values()) else first

    def take(self, ticket: Hashable, wanted: int, *, total: int, now: float) -> int:
        """Serve a ticket: at least one seat, as many as wanted if that leaves a share to each of the others."""
        self._count(now)
        user = self._users[self._waiting.pop(ticket)]
        user.waiting -= 1
        count = max(1, min(wanted, self._share(total, now) - user.seats, total - self.taken))
        user.seats += count
        self.taken += count
        return count

    def give_back(self, user: str, count: int, *, now: float, comes_again: bool = False) -> None:
        """Seats that a user has are free."""
        self._count(now)
        self.taken -= count
        giver = self._users[user]
        giver.seats -= count
        if comes_again:
            giver.left_at = now

    def go(self, ticket: Hashable, user: str, *, now: float) -> None:
        """Somebody has no seats by a ticket any more, and does not wait for any."""
        self._count(now)
        leaver = self._users[user]
        leaver.tickets -= 1
        leaver.waiting -= ticket in self._waiting
        self._waiting.pop(ticket, None)
        least = min((one.seconds for one in self._users.values() if one.tickets), default=math.inf)
        # Who is away for good, and would begin with as much as anybody else, needs not be known.
        self._users = {
            name: one for name, one in self._users.items() if one.tickets or one.is_expected(now) or one.seconds > least
        }

    def _share(self, total: int, now: float) -> int:
        return -(-total // sum(1 for one in self._users.values() if one.tickets or one.is_expected(now)))

    def _count(self, now: float) -> None:
        for user in self._users.values():
            user.count(now)
