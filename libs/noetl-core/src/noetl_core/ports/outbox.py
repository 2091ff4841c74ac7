"""The outbox as publishers see it: a queue of committed messages, shared by shard through leases that expire."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from noetl_core.ports.bus import Message
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """A committed message that waits to be published."""

    outbox_id: int
    """What is deleted; the messages of neighbouring events of a stream share it."""
    shard: int
    execution_id: int
    message: Message
    age_seconds: float
    """How long ago it was written, by the database's clock, when it was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits in the whole outbox, whoever publishes it."""

    rows: int
    """Counted only so far that counting stays cheap."""
    oldest_age_seconds: float


class Outbox(Protocol):
    """Rows are taken until they are gone: there is no watermark that a late commit could fall behind."""

    async def take(
        self, shards: Collection[int], *, limit: int, published: Sequence[int] = ()
    ) -> tuple[OutboxRow, ...]:
        """The first messages of these shards, in outbox order; they stay until they are deleted.

        What was `published` before is deleted with it, under the same ids as by `delete`.

        Those that share an id come together. They carry as many events as asked for if there are as many, a hint
        counting as one, and maybe a few more: who gets fewer has got everything.
        """
        ...

    async def delete(self, outbox_ids: Sequence[int]) -> None:
        """All messages under these ids have been published."""
        ...

    async def backlog(self) -> Backlog:
        """For metrics, and to know when everything has been drained."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPublisher:
    """A publishing process; a new incarnation of an instance replaces the old one at once."""

    instance: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxHolding:
    """What a publisher holds after a heartbeat; short of its share it asks again soon."""

    shards: frozenset[int]
    fair_share: int
    live_publishers: int


def fair_share(shards: int, *, publishers: Sequence[str], owner: str) -> int:
    """How many shards the owner may hold among these publishers; the first by name take what does not divide."""
    place = sorted(publishers).index(owner)
    return shards // len(publishers) + (1 if place < shards % len(publishers) else 0)


class OutboxLeases(Protocol):
    """Who publishes which shard, judged by the database's clock alone."""

    async def shard_count(self) -> int:
        """How many shards this installation has."""
        ...

    async def replace(self, publisher: OutboxPublisher) -> int:
        """End the leases of earlier incarnations of the instance; returns how many there were."""
        ...

    async def hold(self, publisher: OutboxPublisher, *, lease_seconds: float) -> OutboxHolding:
        """Renew what it holds, give back what exceeds its fair share, take what is free up to it."""
        ...

    async def release(self, publisher: OutboxPublisher) -> None:
        """Give everything back at once."""
        ...


class CommitSignal(Protocol):
    """Tells that something was committed; it may miss things, so nobody waits for it without an end."""

    async def wait(self, shards: Collection[int], *, timeout_seconds: float) -> bool:
        """Return True as soon as one of the shards moved since the last call, False when the time is over."""
        ...

    def heard(self, shards: Collection[int]) -> bool:
        """Whether one of the shards moved since the last call, of either kind; nobody is told of it again."""
        ...

    def wake(self) -> None:
        """End a wait that is under way, as if its time were over."""
        ...
