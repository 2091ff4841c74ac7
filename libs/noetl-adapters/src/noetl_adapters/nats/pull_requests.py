"""Standing requests for the next messages of a consumer, within one session, and what they have brought."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from functools import partial

from noetl_core.ports.bus import Delivery
from noetl_core.values import maker

from noetl_adapters.nats import frames
from noetl_adapters.nats.connection import NatsSession, translated

SHORTEST_REQUEST_SECONDS = 2.0
LONGEST_REQUEST_SECONDS = 30.0
LONGEST_HEARTBEAT_SECONDS = 3.0
_DRAIN_SECONDS = 5.0
_HEARTBEAT = "100"
_REQUEST_OVER = ("404", "408", "409")
_UNANSWERED = "Nats-Pending-Messages"
_SHORT_RECEIPT = 9
_DELIVERIES, _STORED_AT = 4, 7
_make_delivery = maker(Delivery)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PullRequests:
    """Counts what the server still owes, and notices when it has forgotten."""

    def __init__(self, session: NatsSession, *, stream: str, consumer: str) -> None:
        self.session = session
        self.broken: str | None = None
        """Why nothing will come any more: the consumer is gone, or does not answer."""
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = session.client.new_inbox()
        self._subscription = 0
        self._buffer: deque[Delivery] = deque()
        self._last_receipt = ""
        self._owed = 0
        self._heartbeat_seconds = LONGEST_HEARTBEAT_SECONDS
        self._heard_at = time.monotonic()
        self._waiters: set[asyncio.Future[None]] = set()

    @classmethod
    def open(cls, session: NatsSession, *, stream: str, consumer: str) -> PullRequests:
        """Ready to ask."""
        requests = cls(session, stream=stream, consumer=consumer)
        requests._subscription = session.client.subscribe(requests._inbox, requests._receive)
        return requests

    @property
    def last_delivery(self) -> datetime | None:
        """When the newest message was stored that came here."""
        if not self._last_receipt:
            return None
        return _EPOCH + timedelta(microseconds=int(_receipt_fields(self._last_receipt)[_STORED_AT]) // 1000)

    async def close(self) -> None:
        """Ask for nothing more, and wait for what the server had sent by then: `take` has it, to be given back.

        What came after a mere end of the subscription would be nobody's until the server counts it as lost.
        """
        async with translated(), asyncio.timeout(_DRAIN_SECONDS):
            await self.session.client.drain(self._subscription)

    def drop(self) -> None:
        """What is still owed comes to nobody, and later to somebody else."""
        self.session.client.unsubscribe(self._subscription)

    def ask(self, batch: int, *, expires_seconds: float) -> None:
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
        self.session.client.publish(self._subject, json.dumps(request).encode(), reply=self._inbox)
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
        patience = 2.5 * self._heartbeat_seconds
        loop, session = self.session.client.loop, self.session
        waiter: asyncio.Future[None] = loop.create_future()
        wake = partial(_end, waiter)
        self._waiters.add(waiter)
        timer = loop.call_later(min(timeout_seconds, patience), wake)
        session.listeners.add(wake)
        try:
            if not session.lost.is_set():
                await waiter
        finally:
            session.listeners.discard(wake)
            timer.cancel()
            self._waiters.discard(waiter)
        if self._owed > 0 and time.monotonic() - self._heard_at > patience:
            self.broken = "no heartbeat"

    def _wake(self) -> None:
        for waiter in self._waiters:
            _end(waiter)

    def _receive(self, subject: str, receipt: str, headers: bytes, body: bytes) -> None:
        self._heard_at = time.monotonic()
        if subject == self._inbox:  # the server itself speaks; messages keep their own subject
            self._hear_status(headers)
            return
        if self._owed > 0:
            self._owed -= 1
        self._last_receipt = receipt
        fields = _receipt_fields(receipt)
        self._buffer.append(
            _make_delivery(subject, body, frames.read_headers(headers), receipt, int(fields[_DELIVERIES]))
        )
        self._wake()

    def _hear_status(self, block: bytes) -> None:
        status, description = frames.read_status(block)
        if status == _HEARTBEAT:
            return
        unanswered = frames.read_headers(block).get(_UNANSWERED)
        if status in _REQUEST_OVER and unanswered is not None:
            self._owed = max(self._owed - int(unanswered), 0)
        else:
            self.broken = f"{status} {description}".strip()
        self._wake()


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _receipt_fields(receipt: str) -> list[str]:
    """Of `$JS.ACK.<stream>.<consumer>.<deliveries>.<place>.<place here>.<time>.<pending>`.

    A server that has a domain puts it and the account before the stream, and something random behind all.
    """
    fields = receipt.split(".")
    return fields if len(fields) == _SHORT_RECEIPT else fields[2:]
