"""Keep the right to publish some shards, and publish them batch by batch while it lasts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from noetl_core.errors import NoetlError
from noetl_core.ports.outbox import OutboxLeases, OutboxPublisher
from noetl_servicekit.logging import get_logger
from noetl_servicekit.shard_ownership import ShardCountMismatch

from noetl_outbox_publisher.application.publish_batch import PublishBatch
from noetl_outbox_publisher.telemetry import PublisherMetrics

logger = get_logger()

RENEWALS_PER_LEASE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """Which shards this process may publish, and until when by its own clock."""

    shards: frozenset[int] = frozenset()
    ends_at: float = float("-inf")
    renew_at: float = float("-inf")


class Drain:
    """Renewing and publishing take turns, so a shard is never given back while a batch of it is under way."""

    def __init__(
        self,
        leases: OutboxLeases,
        publish_batch: PublishBatch,
        metrics: PublisherMetrics,
        *,
        publisher: OutboxPublisher,
        lease_seconds: float,
        poll_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases = leases
        self._publish_batch = publish_batch
        self._metrics = metrics
        self._publisher = publisher
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._tenure = Tenure()
        self._begun = False

    @property
    def shards(self) -> frozenset[int]:
        """What it holds now."""
        return self._tenure.shards

    async def begin(self, *, shard_count: int) -> None:
        """Replace an earlier incarnation of this instance; does nothing the second time."""
        if self._begun:
            return
        existing = await self._leases.shard_count()
        if existing != shard_count:
            raise ShardCountMismatch(installed=existing, told=shard_count)
        ended = await self._leases.replace(self._publisher)
        if ended:
            logger.info("outbox.replaced", shards=ended)
        self._begun = True

    async def step(self) -> bool:
        """Renew the leases if it is time, then publish one batch; returns whether there may be more."""
        if self._clock() >= self._tenure.renew_at:
            await self._renew()
        if not self._tenure.shards:
            await self._publish_batch.settle()
            return False
        return await self._publish_batch(self._tenure.shards, lease_ends_at=self._tenure.ends_at)

    @property
    def is_settled(self) -> bool:
        """Whether nothing that was published is still in the outbox."""
        return self._publish_batch.is_settled

    async def settle(self) -> None:
        """Delete what was published: nothing more is taken for now."""
        await self._publish_batch.settle()

    async def end(self) -> None:
        """Give everything back, so that nobody has to wait until the leases end."""
        held, self._tenure = self._tenure.shards, Tenure()
        self._metrics.held_shards.set(0)
        try:
            await self._publish_batch.settle()
            await self._leases.release(self._publisher)
        except NoetlError as exc:
            logger.warning("outbox.release_failed", shards=len(held), reason=exc.message)

    async def _renew(self) -> None:
        asked_at = self._clock()  # before the database counts, so that our lease never ends after its
        holding = await self._leases.hold(self._publisher, lease_seconds=self._lease_seconds)
        short = len(holding.shards) < holding.fair_share
        pause = self._lease_seconds / RENEWALS_PER_LEASE
        before = self._tenure.shards
        self._tenure = Tenure(
            shards=holding.shards,
            ends_at=asked_at + self._lease_seconds,
            # Short of its share it asks at every poll: what others give back is soon taken.
            renew_at=asked_at + (min(pause, self._poll_seconds) if short else pause),
        )
        self._metrics.held_shards.set(len(holding.shards))
        if holding.shards != before:
            logger.info(
                "outbox.shards_changed",
                gained=len(holding.shards - before),
                lost=len(before - holding.shards),
                held=len(holding.shards),
                publishers=holding.live_publishers,
            )
