"""Standing requests for the next messages of a consumer, within one session, and what they have brought."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from noetl_core.ports.bus import Delivery

from noetl_adapters.nats.connection import NatsSession, translated

SHORTEST_REQUEST_SECONDS = 2.0
LONGEST_REQUEST_SECONDS = 30.0
LONGEST_HEARTBEAT_SECONDS = 3.0
_DRAIN_SECONDS = 5.0
_HEARTBEAT = "100"
_REQUEST_OVER = ("404", "408", "409")
_UNANSWERED = "Nats-Pending-Messages"


class PullRequests:
    """Counts what the server still owes, and notices when it has forgotten."""

    def __init__(self, session: NatsSession, *, stream: str, consumer: str) -> None:
        self.session = session
        self.broken: str | None = None
        """Why nothing will come any more: the consumer is gone, or does not answer."""
        self.last_delivery: datetime | None = None
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = session.client.new_inbox()
        self._subscription: Subscription | None = None
        self._buffer: deque[Delivery] = deque()
        self._owed = 0
        self._heartbeat_seconds = LONGEST_HEARTBEAT_SECONDS
        self._heard_at = time.monotonic()
        self._news = asyncio.Event()

    @classmethod
    async def open(cls, session: NatsSession, *, stream: str, consumer: str) -> PullRequests:
        """Ready to ask."""
        requests = cls(session, stream=stream, consumer=consumer)
        async with translated():
            requests._subscription = await session.client.subscribe(requests._inbox, cb=requests._receive)
        return requests

    async def close(self) -> None:
        """Ask for nothing more, and wait for what the server had sent by then: `take` has it, to be given back.

        What came after a mere end of the subscription would be nobody's until the server counts it as lost.
        """
        if self._subscription is not None:
            async with translated(), asyncio.timeout(_DRAIN_SECONDS):
                await self._subscription.drain()  # type: ignore[no-untyped-call]

    async def drop(self) -> None:
        """What is still owed comes to nobody, and later to somebody else."""
        if self._subscription is not None:
            async with translated():
                await self._subscription.unsubscribe()

    async def ask(self, batch: int, *, expires_seconds: float) -> None:
        """Have the server owe us a batch, without a request for every message that was taken."""
        missing = batch - self._owed - len(self._buffer)
        if missing <= 0 or (self._owed > 0 and missing < batch / 2):
            return
        expires = min(max(expires_seconds, SHORTEST_REQUEST_SECONDS), LONGEST_REQUEST_SECONDS)
        self._heartbeat_seconds = min(expires / 3, LONGEST_HEARTBEAT_SECONDS)
        request = {
            "batch": missing,
            "expires": int(expires * 1e9),
            "idle_heartbeat": int(self._heartbeat_seconds * 1e9),
        }
        if self._owed == 0:
            self._heard_at = time.monotonic()
        async with translated():
            await self.session.client.publish(self._subject, json.dumps(request).encode(), reply=self._inbox)
        self._owed += missing

    @property
    def waiting(self) -> tuple[Delivery, ...]:
        """What has come and was not taken yet."""
        return tuple(self._buffer)

    def take(self, limit: int | None) -> tuple[Delivery, ...]:
        """What has come, at most `limit`."""
        number = len(self._buffer) if limit is None else min(limit, len(self._buffer))
        return tuple(self._buffer.popleft() for _ in range(number))

    async def news(self, *, timeout_seconds: float) -> None:
        """Wait until something came or went wrong, or for the given time."""
        self._news.clear()
        patience = 2.5 * self._heartbeat_seconds
        with self.session.telling_of_loss(self._news.set), suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_seconds, patience)):
                await self._news.wait()
        if self._owed > 0 and time.monotonic() - self._heard_at > patience:
            self.broken = "no heartbeat"

    async def _receive(self, message: Msg) -> None:
        self._heard_at = time.monotonic()
        headers = message.headers or {}
        if message.subject == self._inbox:  # the server itself speaks; messages keep their own subject
            self._hear_status(headers)
            return
        self._owed = max(self._owed - 1, 0)
        metadata = message.metadata
        self.last_delivery = metadata.timestamp
        self._buffer.append(
            Delivery(
                subject=message.subject,
                body=message.data,
                headers=headers,
                receipt=message.reply,
                attempt=metadata.num_delivered,
            )
        )
        self._news.set()

    def _hear_status(self, headers: Mapping[str, str]) -> None:
        status = headers.get("Status", "")
        if status == _HEARTBEAT:
            return
        unanswered = headers.get(_UNANSWERED)
        if status in _REQUEST_OVER and unanswered is not None:
            self._owed = max(self._owed - int(unanswered), 0)
        else:
            self.broken = f"{status} {headers.get('Description', '')}".strip()
        self._news.set()
