"""Publish the next rows of the outbox: send in order, wait for the acknowledgements, delete."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from noetl_contracts.messages import count_events
from noetl_contracts.subjects import TRACEPARENT
from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Publisher, PublishFailed
from noetl_core.ports.outbox import Outbox, OutboxRow
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import span
from opentelemetry.trace import SpanKind

from noetl_outbox_publisher.telemetry import PublisherMetrics

logger = get_logger()

SAMPLES_PER_BATCH = 20
"""How many rows of a batch are timed; each of a thousand would cost more than it tells."""


class PublishBatch:
    """One batch at a time: the next is taken when the last is settled, so nothing overtakes anything."""

    def __init__(
        self,
        outbox: Outbox,
        publisher: Publisher,
        metrics: PublisherMetrics,
        *,
        batch_rows: int,
        publish_seconds: float,
        traced: bool = True,
        heard_of_more: Callable[[Collection[int]], bool] = lambda shards: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Untraced, it makes no spans: right where nobody keeps them, since nothing is passed on from here.

        `heard_of_more` says whether something was committed meanwhile, and is told once: then the next batch is taken.
        """
        self._outbox = outbox
        self._publisher = publisher
        self._metrics = metrics
        self._batch_rows = batch_rows
        self._publish_seconds = publish_seconds
        self._traced = traced
        self._heard_of_more = heard_of_more
        self._clock = clock
        self._published: list[int] = []
        """What the next taking deletes, or whoever finds that there is none."""

    async def __call__(self, shards: Collection[int], *, lease_ends_at: float) -> bool:
        """Publish what is first in these shards; returns whether there may be more, to be called again at once.

        What was published is deleted with the next taking. Who does not call again soon has it deleted by `settle`.
        """
        rows = await self._outbox.take(shards, limit=self._batch_rows, published=self._published)
        self._published = []
        if not rows:
            return False
        taken_at = self._clock()
        if taken_at + self._publish_seconds > lease_ends_at:
            raise Unavailable("taking rows took so long that the lease may end while they are published")
        if self._traced:
            with _spans(rows):
                await self._publish(rows, taken_at)
        else:
            await self._publish(rows, taken_at)
        # Neighbouring events share a message, and it is events that a batch has so many of.
        more = sum([count_events(row.message.headers) for row in rows]) >= self._batch_rows
        return self._heard_of_more(shards) or more

    @property
    def is_settled(self) -> bool:
        """Whether nothing that was published is still in the outbox."""
        return not self._published

    async def settle(self) -> None:
        """Delete what was published and is still there."""
        if self._published:
            await self._outbox.delete(self._published)
            self._published = []

    async def _publish(self, rows: Sequence[OutboxRow], taken_at: float) -> None:
        try:
            await self._publisher.publish_batch([row.message for row in rows])
        except PublishFailed as failure:
            self._metrics.publish_errors.inc()
            # What shares an id with a message that is not settled comes again with it, and is told apart by its own.
            unsettled = {row.outbox_id for row in rows if not _is_settled(row, failure)}
            done = [row for row in rows if row.outbox_id not in unsettled]
            self._acknowledged([row for row in done if row.message.message_id in failure.acknowledged], taken_at)
            await self.settle()
            await self._drop([row for row in done if row.message.message_id in failure.refused], failure.refused)
            if unsettled:
                raise
        else:
            self._acknowledged(rows, taken_at)

    def _acknowledged(self, rows: Sequence[OutboxRow], taken_at: float) -> None:
        """Deleted after the acknowledgement, never before: a crash in between publishes again, which is harmless."""
        if not rows:
            return
        elapsed = self._clock() - taken_at
        self._published = _ids(rows)
        self._metrics.published.inc(len(rows))
        self._metrics.batch_rows.observe(len(rows))
        for row in rows[:: 1 + len(rows) // SAMPLES_PER_BATCH]:
            self._metrics.commit_to_ack_seconds.observe(row.age_seconds + elapsed)

    async def _drop(self, rows: Sequence[OutboxRow], reasons: Mapping[str, str]) -> None:
        """What can never be published would stop its shard for ever; the log still has the event itself."""
        if not rows:
            return
        for row in rows:
            logger.error(
                "outbox.refused",
                message_id=row.message.message_id,
                subject=row.message.subject,
                execution_id=str(row.execution_id),
                reason=reasons[row.message.message_id],
            )
        await self._outbox.delete(_ids(rows))
        self._metrics.refused.inc(len(rows))


def _is_settled(row: OutboxRow, failure: PublishFailed) -> bool:
    return row.message.message_id in failure.acknowledged or row.message.message_id in failure.refused


def _ids(rows: Sequence[OutboxRow]) -> list[int]:
    return list(dict.fromkeys(row.outbox_id for row in rows))


@contextmanager
def _spans(rows: Sequence[OutboxRow]) -> Iterator[None]:
    """A span in the trace of each execution that has rows in the batch."""
    by_execution: dict[int, list[OutboxRow]] = {}
    for row in rows:
        if TRACEPARENT in row.message.headers:
            by_execution.setdefault(row.execution_id, []).append(row)
    with ExitStack() as stack:
        for execution_id, own in by_execution.items():
            stack.enter_context(
                span(
                    "outbox.publish",
                    parent=own[0].message.headers[TRACEPARENT],
                    kind=SpanKind.PRODUCER,
                    attributes={
                        "messaging.system": "nats",
                        "messaging.batch.message_count": len(own),
                        "noetl.execution_id": str(execution_id),
                        "noetl.shard": own[0].shard,
                    },
                )
            )
        yield
