"""The in-memory twin of the bus: one list of messages, publishers that feed it, consumers that walk along it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Delivery, Message, PublishFailed


class InMemoryBus:
    """What has been published, each message id once; `away` and `refuse_after` are switches for tests."""

    def __init__(self) -> None:
        self.published: list[Message] = []
        self.away = False
        self.refuse_after: int | None = None
        """How many more messages are taken before the bus goes away in the middle of a batch."""
        self.unpublishable: set[str] = set()
        self.moved = asyncio.Condition()
        self._ids: set[str] = set()
        self._listeners: list[tuple[str, Callable[[bytes], Awaitable[None]]]] = []

    async def publish_batch(self, messages: Sequence[Message]) -> None:
        """Take the messages in order; acknowledge a prefix and fail when told so."""
        acknowledged: set[str] = set()
        refused = {
            message.message_id: "no stream has the subject"
            for message in messages
            if message.subject in self.unpublishable
        }
        for message in messages:
            if message.message_id in refused:
                continue
            if self.refuse_after == 0:
                self.away, self.refuse_after = True, None
            if self.away:
                raise PublishFailed("the bus is away", acknowledged=frozenset(acknowledged))
            if self.refuse_after is not None:
                self.refuse_after -= 1
            await self._take(message)
            acknowledged.add(message.message_id)
        if refused:
            raise PublishFailed("unpublishable", acknowledged=frozenset(acknowledged), refused=refused)

    async def subscribe(self, subject: str, receive: Callable[[bytes], Awaitable[None]]) -> None:
        """Hear what is published from now on."""
        self._listeners.append((subject, receive))

    def consumer(self, *subjects: str, max_ack_pending: int = 1_000) -> InMemoryPullConsumer:
        """A consumer of its own that begins with the first message."""
        return InMemoryPullConsumer(self, subjects, max_ack_pending=max_ack_pending)

    async def _take(self, message: Message) -> None:
        if message.message_id in self._ids:
            return
        self._ids.add(message.message_id)
        async with self.moved:
            self.published.append(message)
            self.moved.notify_all()
        for subject, receive in self._listeners:
            if matches(subject, message.subject):
                await receive(message.body)


@dataclass(slots=True)
class _Place:
    """What a consumer knows of one message that matched."""

    message: Message
    attempts: int = 0
    due_at: float = 0.0
    settled: bool = False
    pending: bool = False


class InMemoryPullConsumer:
    """Delivers in order, again after a nak, and never more at once than may be pending."""

    def __init__(self, bus: InMemoryBus, subjects: Sequence[str], *, max_ack_pending: int) -> None:
        self._bus = bus
        self._subjects = tuple(subjects)
        self._max_ack_pending = max_ack_pending
        self._seen = 0
        self._places: dict[int, _Place] = {}

    async def fetch(self, *, batch: int, wait_seconds: float) -> tuple[Delivery, ...]:
        """Return as soon as there is one, with whatever else is there."""
        ends_at = time.monotonic() + wait_seconds
        while True:
            if self._bus.away:
                raise Unavailable("the bus is away")
            deliveries = self._deliver(batch)
            remaining = ends_at - time.monotonic()
            if deliveries or remaining <= 0:
                return deliveries
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, self._until_next_due())), self._bus.moved:
                    await self._bus.moved.wait()

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """They are dealt with."""
        for place in self._places_of(deliveries):
            place.settled, place.pending = True, False

    async def nak(self, deliveries: Iterable[Delivery], *, delay_seconds: float = 0.0) -> None:
        """They are to come again."""
        for place in self._places_of(deliveries):
            place.pending, place.due_at = False, time.monotonic() + delay_seconds

    async def keep(self, deliveries: Iterable[Delivery]) -> None:
        """Nothing comes again by itself here."""

    async def term(self, deliveries: Iterable[Delivery]) -> None:
        """They are never to come again."""
        await self.ack(deliveries)

    async def set_subjects(self, subjects: Sequence[str]) -> None:
        """Listen to these from now on."""
        self._catch_up()
        self._subjects = tuple(subjects)
        self._places = {
            number: place for number, place in self._places.items() if place.pending or self._wants(place.message)
        }

    async def close(self) -> None:
        """There is nothing that was delivered and not fetched."""

    def _deliver(self, batch: int) -> tuple[Delivery, ...]:
        self._catch_up()
        now = time.monotonic()
        room = min(batch, self._max_ack_pending - sum(place.pending for place in self._places.values()))
        due = [
            (number, place)
            for number, place in self._places.items()
            if not place.settled and not place.pending and place.due_at <= now
        ][: max(room, 0)]
        for _, place in due:
            place.pending = True
            place.attempts += 1
        return tuple(
            Delivery(
                subject=place.message.subject,
                body=place.message.body,
                headers=place.message.headers,
                receipt=str(number),
                attempt=place.attempts,
            )
            for number, place in due
        )

    def _catch_up(self) -> None:
        for number, message in enumerate(self._bus.published[self._seen :], start=self._seen):
            if self._wants(message):
                self._places[number] = _Place(message)
        self._seen = len(self._bus.published)

    def _wants(self, message: Message) -> bool:
        return any(matches(subject, message.subject) for subject in self._subjects)

    def _until_next_due(self) -> float:
        waiting = [place.due_at for place in self._places.values() if not place.settled and not place.pending]
        return max(min(waiting) - time.monotonic(), 0.001) if waiting else 60.0

    def _places_of(self, deliveries: Iterable[Delivery]) -> list[_Place]:
        if self._bus.away:
            raise Unavailable("the bus is away")
        return [self._places[int(delivery.receipt)] for delivery in deliveries]


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject fits a pattern with `*` for one token and `>` for the rest."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1] if len(tokens) >= len(wanted) else []
    return len(wanted) == len(tokens) and all(want in ("*", token) for want, token in zip(wanted, tokens, strict=True))
