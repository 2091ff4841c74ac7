"""The in-memory twins of the outbox, of its leases and of the signal that something was committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from noetl_contracts.messages import count_events
from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Message
from noetl_core.ports.outbox import Backlog, OutboxHolding, OutboxPublisher, OutboxRow, fair_share


class InMemoryOutbox:
    """Rows of one process; `rows` is open to tests, and `away` is a switch for them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows: dict[int, OutboxRow] = {}
        self.away = False
        self.takes = 0
        self._clock = clock
        self._written_at: dict[int, float] = {}
        self._last_id = 0

    def write(self, *messages: Message, shard: int = 0, execution_id: int = 1) -> tuple[int, ...]:
        """What an append does in its transaction; returns the ids of the rows."""
        first = self._last_id + 1
        for message in messages:
            self._last_id += 1
            self._written_at[self._last_id] = self._clock()
            self.rows[self._last_id] = OutboxRow(
                outbox_id=self._last_id,
                shard=shard,
                execution_id=execution_id,
                message=message,
                age_seconds=0.0,
            )
        return tuple(range(first, self._last_id + 1))

    async def take(
        self, shards: Collection[int], *, limit: int, published: Sequence[int] = ()
    ) -> tuple[OutboxRow, ...]:
        """The first rows of these shards, in outbox order."""
        await self.delete(published)
        self.takes += 1
        taken, events = [], 0
        for _, row in sorted(self.rows.items()):
            if events >= limit:
                break
            if row.shard in shards:
                taken.append(replace(row, age_seconds=self._age(row.outbox_id)))
                events += count_events(row.message.headers)
        return tuple(taken)

    async def delete(self, outbox_ids: Sequence[int]) -> None:
        """They have been published."""
        self._check()
        for outbox_id in outbox_ids:
            self.rows.pop(outbox_id, None)

    async def backlog(self) -> Backlog:
        """What waits."""
        self._check()
        oldest = self._age(min(self.rows)) if self.rows else 0.0
        return Backlog(rows=len(self.rows), oldest_age_seconds=oldest)

    def _age(self, outbox_id: int) -> float:
        return self._clock() - self._written_at[outbox_id]

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the database is away")


class InMemoryOutboxLeases:
    """Judges by the clock it is given, as the database judges by its own."""

    def __init__(self, *, shards: int = 4, clock: Callable[[], float] = time.monotonic) -> None:
        self.away = False
        self._clock = clock
        self._owners: dict[int, OutboxPublisher | None] = dict.fromkeys(range(shards))
        self._ends_at: dict[int, float] = dict.fromkeys(range(shards), float("-inf"))
        self._seen_at: dict[OutboxPublisher, float] = {}

    async def shard_count(self) -> int:
        """How many shards there are."""
        self._check()
        return len(self._owners)

    async def replace(self, publisher: OutboxPublisher) -> int:
        """End the leases of earlier incarnations of the instance."""
        self._check()
        predecessors = {
            known
            for known in (*self._seen_at, *self._owners.values())
            if known is not None and known.instance == publisher.instance and known != publisher
        }
        ended = [shard for shard, owner in self._owners.items() if owner in predecessors]
        self._give_back(ended)
        for predecessor in predecessors:
            self._seen_at.pop(predecessor, None)
        return len(ended)

    async def hold(self, publisher: OutboxPublisher, *, lease_seconds: float) -> OutboxHolding:
        """Renew what it holds, give back what exceeds its fair share, take what is free up to it."""
        self._check()
        now = self._clock()
        self._seen_at[publisher] = now
        self._seen_at = {known: seen for known, seen in self._seen_at.items() if seen >= now - lease_seconds}
        names = [str(known) for known in self._seen_at]
        share = fair_share(len(self._owners), publishers=names, owner=str(publisher))
        held = [shard for shard, owner in self._owners.items() if owner == publisher]
        self._give_back(held[share:])
        free = [shard for shard, ends_at in self._ends_at.items() if ends_at < now and self._owners[shard] != publisher]
        held = held[:share] + free[: max(share - len(held), 0)]
        for shard in held:
            self._owners[shard], self._ends_at[shard] = publisher, now + lease_seconds
        return OutboxHolding(shards=frozenset(held), fair_share=share, live_publishers=len(self._seen_at))

    async def release(self, publisher: OutboxPublisher) -> None:
        """Give everything back at once."""
        self._check()
        self._give_back([shard for shard, owner in self._owners.items() if owner == publisher])
        self._seen_at.pop(publisher, None)

    def _give_back(self, shards: Collection[int]) -> None:
        for shard in shards:
            self._owners[shard], self._ends_at[shard] = None, float("-inf")

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the database is away")


class InMemoryCommitSignal:
    """Tells of what `commit` is told."""

    def __init__(self) -> None:
        self._moved: set[int] = set()
        self._news = asyncio.Event()
        self._woken = False

    def commit(self, *shards: int) -> None:
        """These shards have moved."""
        self._moved.update(shards)
        self._news.set()

    async def wait(self, shards: Collection[int], *, timeout_seconds: float) -> bool:
        """Return True as soon as one of the shards moved since the last call, False when the time is over."""
        self._woken = False
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self._moved.isdisjoint(shards) and not self._woken:
                    self._news.clear()
                    await self._news.wait()
        return self.heard(shards)

    def heard(self, shards: Collection[int]) -> bool:
        """Whether one of the shards moved since the last call, of either kind."""
        concerned = not self._moved.isdisjoint(shards)
        self._moved.clear()
        return concerned

    def wake(self) -> None:
        """End a wait that is under way."""
        self._woken = True
        self._news.set()
