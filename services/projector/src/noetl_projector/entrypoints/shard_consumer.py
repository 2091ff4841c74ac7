"""Events from the bus: parsed, projected in batches by execution, acknowledged when their rows are committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from noetl_contracts.messages import count_events, is_of_another_log, unpack_events
from noetl_contracts.subjects import TRACEPARENT
from noetl_core.envelope import StoredEvent, verify_link
from noetl_core.errors import InvalidInput, NoetlError, Unavailable
from noetl_core.ids import parse_id
from noetl_core.ports.bus import Delivery, PullConsumer
from noetl_core.sharding import shard_of
from noetl_servicekit.logging import get_logger

from noetl_projector.application.advance import Wanted
from noetl_projector.application.project_batch import ProjectBatch
from noetl_projector.telemetry import NO_SHARD, ProjectorMetrics, count_by_shard

logger = get_logger()

WAIT_SECONDS: Final = 5.0
AWAY_SECONDS: Final = 0.25
"""How soon to try again, and how long to wait for the first message: that nothing comes is an answer too."""
REDELIVERY_SECONDS: Final = 1.0
KEEP_SECONDS: Final = 8.0
"""How often messages that wait for their turn are kept from coming again; the bus waits 30 s for each."""
GATHER_SECONDS: Final = 0.025
"""After a batch that was small: what comes meanwhile is written together. The first after a rest never waits."""


@dataclass(frozen=True, slots=True)
class _Parsed:
    delivery: Delivery
    execution_id: int
    shard: int
    events: Sequence[StoredEvent]


class ShardConsumer:
    """Takes what is there, at most a batch; while one batch is written, the next one gathers by itself."""

    def __init__(
        self,
        consumer: PullConsumer,
        project: ProjectBatch,
        *,
        batch_size: int,
        shard_count: int,
        metrics: ProjectorMetrics,
        log_branch: Callable[[], str] = lambda: "",
        on_bus_away: Callable[[], None] = lambda: None,
        gather_seconds: float = GATHER_SECONDS,
        clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self._consumer = consumer
        self._project = project
        self._batch_size = batch_size
        self._shard_count = shard_count
        self._metrics = metrics
        self._log_branch = log_branch
        self._on_bus_away = on_bus_away
        self._gather_seconds = gather_seconds
        self._clock = clock
        self.bus_is_away = True
        """Until the first fetch succeeds: whoever compares heads then does not rely on the bus."""

    async def run(self, beat: Callable[[], None]) -> None:
        """Consume for ever; raises while the database is away."""
        while True:
            beat()
            try:
                deliveries = await self._consumer.fetch(
                    batch=self._batch_size, wait_seconds=AWAY_SECONDS if self.bus_is_away else WAIT_SECONDS
                )
            except Unavailable as exc:
                self._bus_went_away(exc)
                await asyncio.sleep(AWAY_SECONDS)
                continue
            if self.bus_is_away:
                self.bus_is_away = False
                self._metrics.bus_away.set(0)
                logger.info("projector.bus_is_back")
            if deliveries:
                events = await self._take_in_turn(deliveries, beat)
                if events < self._batch_size // 2:
                    await asyncio.sleep(self._gather_seconds)

    async def _take_in_turn(self, deliveries: Sequence[Delivery], beat: Callable[[], None]) -> int:
        """Batch after batch, returns the number of events; what waits comes again early only if one fails."""
        begun = events = 0
        kept_at = self._clock()
        for part, count in batches(deliveries, self._batch_size):
            begun, events = begun + len(part), events + count
            try:
                await self.take(part)
            except NoetlError:
                await self._ask_again(deliveries[begun:], [self._shard_told(one) for one in deliveries[begun:]])
                raise
            beat()
            if begun < len(deliveries) and self._clock() - kept_at >= KEEP_SECONDS:
                with suppress(Unavailable):
                    await self._consumer.keep(deliveries[begun:])
                kept_at = self._clock()
        return events

    async def take(self, deliveries: Sequence[Delivery]) -> None:
        """One batch, from parsing to acknowledgement."""
        log_branch = self._log_branch()
        own, foreign = self._told_apart(deliveries, log_branch)
        if foreign:
            self._metrics.foreign_messages.inc(len(foreign))
            with suppress(Unavailable):
                await self._consumer.term(foreign)
        readable, unreadable = self._parse(own)
        if unreadable:
            count_by_shard(self._metrics.terminated, [self._shard_told(one) for one in unreadable])
            self._metrics.last_action_at.labels("terminated").set_to_current_time()
            with suppress(Unavailable):
                await self._consumer.term(unreadable)
        try:
            await self._project(_by_execution(readable, log_branch))
        except NoetlError:
            await self._ask_again([one.delivery for one in readable], [one.shard for one in readable])
            raise
        # Should this get lost, the messages come again, and are known by their versions.
        with suppress(Unavailable):
            await self._consumer.ack([one.delivery for one in readable])
            count_by_shard(self._metrics.acknowledged, [one.shard for one in readable])
            self._metrics.last_action_at.labels("acknowledged").set_to_current_time()

    async def _ask_again(self, deliveries: Sequence[Delivery], shards: Sequence[int | str]) -> None:
        if not deliveries:
            return
        count_by_shard(self._metrics.redelivery_requests, shards)
        count_by_shard(self._metrics.delayed_redelivery_requests, shards)
        self._metrics.last_action_at.labels("redelivery").set_to_current_time()
        with suppress(Unavailable):
            await self._consumer.nak(deliveries, delay_seconds=REDELIVERY_SECONDS)

    def _told_apart(self, deliveries: Sequence[Delivery], log_branch: str) -> tuple[list[Delivery], list[Delivery]]:
        own: list[Delivery] = []
        foreign: list[Delivery] = []
        for delivery in deliveries:
            (foreign if is_of_another_log(delivery.headers, log_branch) else own).append(delivery)
        return own, foreign

    def _parse(self, deliveries: Iterable[Delivery]) -> tuple[list[_Parsed], list[Delivery]]:
        readable: list[_Parsed] = []
        unreadable: list[Delivery] = []
        for delivery in deliveries:
            try:
                execution_id, shard = self._place(delivery.subject)
                events = unpack_events(delivery.body, delivery.headers)
                for event in events:
                    verify_link(event)
            except NoetlError as exc:
                if isinstance(exc, InvalidInput):
                    self._metrics.events_unshardable.inc()
                else:
                    self._metrics.decode_errors.labels(self._shard_told(delivery)).inc()
                self._metrics.errors.inc()
                logger.warning("projector.undecodable_message", subject=delivery.subject, reason=exc.message)
                unreadable.append(delivery)
            else:
                self._metrics.events_received.inc(len(events))
                readable.append(_Parsed(delivery, execution_id, shard, events))
        return readable, unreadable

    def _place(self, subject: str) -> tuple[int, int]:
        """Execution and shard; raises `InvalidInput` unless the publisher counts shards as we do."""
        tokens = subject.split(".")
        if len(tokens) != 6:
            raise InvalidInput(f"{subject!r} is not the subject of an event")
        execution_id = parse_id(tokens[4], what="execution_id")
        shard = shard_of(execution_id, self._shard_count)
        if tokens[5] != str(shard):
            raise InvalidInput(f"execution {execution_id} belongs to shard {shard}, it came under {tokens[5]!r}")
        return execution_id, shard

    def _shard_told(self, delivery: Delivery) -> str:
        """The shard of a message that cannot be read, if at least its subject says one that there is."""
        with suppress(InvalidInput):
            return str(self._place(delivery.subject)[1])
        return NO_SHARD

    def _bus_went_away(self, exc: Unavailable) -> None:
        self._metrics.bus_away.set(1)
        if not self.bus_is_away:
            self.bus_is_away = True
            logger.warning("projector.bus_is_away", reason=exc.message)
            self._on_bus_away()


def batches(deliveries: Sequence[Delivery], most_events: int) -> Iterator[tuple[Sequence[Delivery], int]]:
    """Deliveries divided so that not too many events come together, with their number; none is divided itself."""
    first = events = 0
    for place, delivery in enumerate(deliveries):
        count = count_events(delivery.headers)
        if events and events + count > most_events:
            yield deliveries[first:place], events
            first, events = place, 0
        events += count
    yield deliveries[first:], events


def _by_execution(parsed: Iterable[_Parsed], log_branch: str) -> list[Wanted]:
    grouped: dict[int, list[_Parsed]] = {}
    for one in parsed:
        grouped.setdefault(one.execution_id, []).append(one)
    return [
        Wanted(
            execution_id=execution_id,
            shard=group[0].shard,
            events=tuple(event for one in group for event in one.events),
            trace=group[0].delivery.headers.get(TRACEPARENT, ""),
            log_branch=log_branch,
        )
        for execution_id, group in grouped.items()
    ]
