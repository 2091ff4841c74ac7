"""A durable place in a stream; messages are asked for ahead, so that one that comes is there at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from noetl_core.errors import NoetlError, Unavailable
from noetl_core.ports.bus import Delivery

from noetl_adapters.nats import frames
from noetl_adapters.nats.connection import NatsConnection
from noetl_adapters.nats.consumers import (
    ConsumerSpec,
    delete_consumer,
    deliver_unacknowledged_again,
    ensure_consumer,
)
from noetl_adapters.nats.pull_requests import PullRequests

_ACK, _NAK, _TERM, _IN_PROGRESS = b"+ACK", b"-NAK", b"+TERM", b"+WPI"
ACK_SECONDS = 0.025
MOST_ACKS = 64
"""Nobody waits for an acknowledgement: they are sent together, after so long or so many. Unless they hold back what
comes next; then each is sent at once."""


class NatsPullConsumer:
    """Makes its consumer when it is first used, and again when it or the connection was lost.

    At most as many messages as the last `fetch` asked for are held here unfetched; whoever needs a fair share
    of a work queue asks for what it has room for.
    """

    def __init__(self, connection: NatsConnection, spec: ConsumerSpec) -> None:
        self._connection = connection
        self._spec = spec
        self._subjects = frozenset(spec.subjects)
        self._applied: frozenset[str] | None = None
        self._subjects_changed = asyncio.Event()
        self._requests: PullRequests | None = None
        self._last_delivery: datetime | None = None
        self._opening = asyncio.Lock()
        self._acks: list[bytes] = []
        self._most_acks = min(MOST_ACKS, spec.max_ack_pending // 4)
        self._ack_timer: asyncio.TimerHandle | None = None

    async def fetch(self, *, batch: int, wait_seconds: float) -> tuple[Delivery, ...]:
        """Return as soon as there is one, with whatever else is there; raises `Unavailable` without NATS."""
        ends_at = time.monotonic() + wait_seconds
        recreated = False
        while True:
            requests = await self._ready_requests()
            remaining = ends_at - time.monotonic()
            if requests is None:
                await self._wait_for_subjects(timeout_seconds=remaining)
            else:
                requests.ask(batch, expires_seconds=wait_seconds)
                deliveries = requests.take(batch)
                if deliveries:
                    return deliveries
                await requests.news(timeout_seconds=remaining)
                if requests.broken is not None:
                    if recreated:
                        raise Unavailable(f"consumer {self._spec.durable}: {requests.broken}")
                    recreated = True
            if remaining <= 0:
                return ()

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """They are dealt with; should this get lost, they come again."""
        client = self._connection.session().client
        self._acks += [frames.publish(delivery.receipt, _ACK) for delivery in deliveries]
        if len(self._acks) >= self._most_acks:
            await self._settle((), _ACK)
        elif self._ack_timer is None:
            self._ack_timer = client.loop.call_later(ACK_SECONDS, self._send_acks)

    async def nak(self, deliveries: Iterable[Delivery], *, delay_seconds: float = 0.0) -> None:
        """They are to come again, to whoever asks first."""
        delay = json.dumps({"delay": int(delay_seconds * 1e9)}).encode()
        await self._settle(deliveries, _NAK + b" " + delay if delay_seconds > 0 else _NAK)

    async def keep(self, deliveries: Iterable[Delivery]) -> None:
        """They are still to be dealt with here, after them what has come and nobody has fetched yet."""
        ahead = self._requests.waiting if self._requests is not None else ()
        await self._settle((*deliveries, *ahead), _IN_PROGRESS)

    async def term(self, deliveries: Iterable[Delivery]) -> None:
        """They are never to come again."""
        await self._settle(deliveries, _TERM)

    async def set_subjects(self, subjects: Sequence[str]) -> None:
        """Listen to these from now on; without any, the consumer is removed until there are some."""
        self._subjects = frozenset(subjects)
        self._subjects_changed.set()
        with suppress(Unavailable):  # then the next fetch sees to it
            await self._ready_requests()

    async def close(self) -> None:
        """Give back what was delivered and not fetched; the place in the stream stays."""
        self._send_acks()
        requests, self._requests = self._requests, None
        if requests is not None:
            with suppress(NoetlError):
                await requests.close()
            with suppress(NoetlError):
                await self.nak(requests.take(None))

    async def _wait_for_subjects(self, *, timeout_seconds: float) -> None:
        self._subjects_changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._subjects_changed.wait(), max(timeout_seconds, 0))

    async def _ready_requests(self) -> PullRequests | None:
        async with self._opening:
            session = self._connection.session()
            requests = self._requests
            if requests is not None and (requests.session is not session or requests.broken is not None):
                self._last_delivery = requests.last_delivery or self._last_delivery
                self._requests = self._applied = None
                if requests.session is session:
                    requests.drop()
            if self._applied != self._subjects:
                await self._apply_subjects()
            if self._requests is None and self._subjects:
                self._requests = PullRequests.open(session, stream=self._spec.stream, consumer=self._spec.durable)
            return self._requests if self._subjects else None

    async def _apply_subjects(self) -> None:
        wanted = self._subjects
        client = self._connection.session().client
        if wanted:
            existed = await ensure_consumer(
                client, self._spec, subjects=tuple(wanted), last_delivery=self._last_delivery
            )
            if existed and self._applied is None and not self._spec.shared:
                await deliver_unacknowledged_again(client, self._spec)
        else:
            await delete_consumer(client, self._spec)
            if self._requests is not None:
                self._requests.drop()
                self._requests = None
        self._applied = wanted

    async def _settle(self, deliveries: Iterable[Delivery], verdict: bytes) -> None:
        client = self._connection.session().client
        client.send(
            b"".join([*self._taken_acks(), *[frames.publish(delivery.receipt, verdict) for delivery in deliveries]])
        )
        if client.room is not None:
            await asyncio.shield(client.room)

    def _send_acks(self) -> None:
        """What gets lost with the connection comes again."""
        acks = self._taken_acks()
        if acks:
            with suppress(Unavailable):
                self._connection.session().client.send(b"".join(acks))

    def _taken_acks(self) -> list[bytes]:
        acks, self._acks = self._acks, []
        timer, self._ack_timer = self._ack_timer, None
        if timer is not None:
            timer.cancel()
        return acks
