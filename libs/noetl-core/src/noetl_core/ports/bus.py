"""The message bus as its users see it: a service that carries news of commits, never the truth about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from noetl_core.errors import Unavailable
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something to publish; the same `message_id` within the bus' window is the same message."""

    subject: str
    message_id: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message as a consumer gets it; it comes again unless it is settled in time."""

    subject: str
    body: bytes
    headers: Mapping[str, str]
    receipt: str
    """Names this delivery to the bus when it is settled."""
    attempt: int = 1


class PublishFailed(Unavailable):
    """Some messages of a batch were not acknowledged; what became of each is named by message id."""

    code = "bus.publish_failed"

    def __init__(self, message: str, *, acknowledged: frozenset[str], refused: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.acknowledged = acknowledged
        self.refused: Mapping[str, str] = refused or {}
        """Those that no bus will ever take, with the reason: sending them again cannot help."""


class Publisher(Protocol):
    """Sends batches; one at a time, for the sake of their order."""

    async def publish_batch(self, messages: Sequence[Message]) -> None:
        """Send all in order and wait for every acknowledgement; raises `PublishFailed` unless all came."""
        ...


class PullConsumer(Protocol):
    """A durable place in a stream; what is fetched is settled by ack, nak or term."""

    async def fetch(self, *, batch: int, wait_seconds: float) -> tuple[Delivery, ...]:
        """Return as soon as there is one, with whatever else is there; nothing when the wait is over."""
        ...

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """They are dealt with."""
        ...

    async def nak(self, deliveries: Iterable[Delivery], *, delay_seconds: float = 0.0) -> None:
        """They are to come again, to whoever asks first."""
        ...

    async def keep(self, deliveries: Iterable[Delivery]) -> None:
        """They are still to be dealt with here: the time after which they come again begins anew."""
        ...

    async def term(self, deliveries: Iterable[Delivery]) -> None:
        """They are never to come again, although nobody could deal with them."""
        ...

    async def set_subjects(self, subjects: Sequence[str]) -> None:
        """Listen to these from now on; what was published under new ones before may never come."""
        ...

    async def close(self) -> None:
        """Give back what was delivered and not fetched; the place in the stream stays."""
        ...


class Broadcasts(Protocol):
    """Messages to everybody who listens at this moment; nothing is kept for anybody."""

    async def subscribe(self, subject: str, receive: Callable[[bytes], Awaitable[None]]) -> None:
        """Listen until the bus is left, across every reconnection."""
        ...
