"""Publishes batches to JetStream: everything on the wire first, then all acknowledgements together."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from noetl_contracts.subjects import MESSAGE_ID, OWN_HEADERS, STREAMS, StreamSpec
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.ports.bus import Message, PublishFailed

from noetl_adapters.nats import frames
from noetl_adapters.nats.connection import NatsConnection, NatsSession
from noetl_adapters.nats.provision import provision_streams

WRITE_EVERY_MESSAGES = 64
HEADER_ALLOWANCE_BYTES = 4_096
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NO_RESPONDERS = "503"


class NatsPublisher:
    """One batch at a time, each on one TCP connection, so that what a lost one delivered is a prefix of it."""

    def __init__(
        self,
        connection: NatsConnection,
        *,
        streams: Sequence[StreamSpec] = STREAMS,
        stream_replicas: int = 1,
        max_in_flight: int = 1_000,
        ack_timeout_seconds: float = 2.0,
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._stream_replicas = stream_replicas
        self._prefixes = tuple(subject.removesuffix(">") for spec in streams for subject in spec.subjects)
        self._max_in_flight = max_in_flight
        self._ack_timeout_seconds = ack_timeout_seconds
        self._inbox: _AckInbox | None = None
        self._provisioned = False
        self._one_at_a_time = asyncio.Lock()

    async def publish_batch(self, messages: Sequence[Message]) -> None:
        """Send all in order and wait for every acknowledgement; raises `PublishFailed` unless all came."""
        acknowledged: set[str] = set()
        async with self._one_at_a_time:
            try:
                inbox = await self._ready_inbox()
                refused = self._refusals(messages, max_bytes=inbox.session.client.max_payload)
                sendable = [message for message in messages if message.message_id not in refused]
                for window in _windows(sendable, self._max_in_flight):
                    await self._publish_window(inbox, window, acknowledged)
            except NoetlError as exc:
                self._provisioned = False  # perhaps a stream has vanished: look before the next batch
                raise PublishFailed(exc.message, acknowledged=frozenset(acknowledged)) from exc
        if refused:
            raise PublishFailed(
                f"{len(refused)} of {len(messages)} messages can never be published",
                acknowledged=frozenset(acknowledged),
                refused=refused,
            )

    async def _ready_inbox(self) -> _AckInbox:
        session = self._connection.session()
        if self._inbox is None or self._inbox.session is not session:
            self._provisioned = False
            self._inbox = _AckInbox(session)
        if not self._provisioned:
            await provision_streams(session.client, self._streams, replicas=self._stream_replicas)
            self._provisioned = True
        return self._inbox

    async def _publish_window(self, inbox: _AckInbox, window: Sequence[Message], acknowledged: set[str]) -> None:
        flight = inbox.start(window)
        session = inbox.session
        timer = session.client.loop.call_later(self._ack_timeout_seconds, flight.give_up)
        session.listeners.add(flight.give_up)
        try:
            await inbox.send(flight)
            await flight.landed
        finally:
            session.listeners.discard(flight.give_up)
            timer.cancel()
            acknowledged |= flight.acknowledged
        if flight.waiting and session.client.lost:
            raise Unavailable(f"the connection to NATS was lost with {len(flight.waiting)} messages in flight")
        if flight.waiting:
            raise Unavailable(f"{len(flight.waiting)} of {len(window)} messages were not acknowledged in time")
        if flight.failure is not None:
            raise Unavailable(f"JetStream did not take a message: {flight.failure}")

    def _refusals(self, messages: Sequence[Message], *, max_bytes: int) -> Mapping[str, str]:
        """What no server will ever take is told apart here, so that it cannot stop what comes after it."""
        refused: dict[str, str] = {}
        for message in messages:
            if not message.subject.startswith(self._prefixes) or not _SUBJECT.fullmatch(message.subject):
                refused[message.message_id] = f"no stream has the subject {message.subject!r}"
            elif not all(map(_HEADER_NAME.fullmatch, message.headers.keys() - OWN_HEADERS)):
                refused[message.message_id] = "the name of a header has characters that are not allowed"
            elif len(message.body) + HEADER_ALLOWANCE_BYTES > max_bytes:
                refused[message.message_id] = f"{len(message.body)} bytes are more than NATS takes"
        return refused


class _Flight:
    """Messages that were sent together, until each has its acknowledgement or it is given up."""

    def __init__(self, messages: Mapping[str, Message], landed: asyncio.Future[None]) -> None:
        self.messages = messages
        self.waiting = dict(messages)
        self.acknowledged: set[str] = set()
        self.failure: str | None = None
        self.landed = landed

    def answer(self, token: str, failure: str | None) -> None:
        message = self.waiting.pop(token, None)
        if message is None:
            return  # an answer to an earlier flight that came too late
        if failure is None:
            self.acknowledged.add(message.message_id)
        elif self.failure is None:
            self.failure = failure
        if not self.waiting:
            self.give_up()

    def give_up(self) -> None:
        """Wait no longer: all have come, the time is over, or the connection is lost."""
        if not self.landed.done():
            self.landed.set_result(None)


class _AckInbox:
    """Where JetStream answers in one session."""

    def __init__(self, session: NatsSession) -> None:
        self.session = session
        self._prefix = session.client.new_inbox()
        self._tokens = count()
        self._flight = self.start(())
        session.client.subscribe(f"{self._prefix}.*", self._receive)

    def start(self, messages: Sequence[Message]) -> _Flight:
        landed: asyncio.Future[None] = self.session.client.loop.create_future()
        self._flight = _Flight({str(next(self._tokens)): message for message in messages}, landed)
        return self._flight

    async def send(self, flight: _Flight) -> None:
        client = self.session.client
        written: list[bytes] = []
        for token, message in flight.messages.items():
            written.append(
                frames.publish_with_headers(
                    message.subject,
                    message.body,
                    f"{self._prefix}.{token}",
                    {**message.headers, MESSAGE_ID: message.message_id},
                )
            )
            if len(written) == WRITE_EVERY_MESSAGES:
                client.send(b"".join(written))
                written = []
                await asyncio.sleep(0)  # others are to have their turn, and answers are to be read
                if (room := client.room) is not None:
                    await asyncio.wait((room, flight.landed), return_when=asyncio.FIRST_COMPLETED)
                if flight.landed.done():
                    return  # given up
        client.send(b"".join(written))

    def _receive(self, subject: str, _reply: str, headers: bytes, body: bytes) -> None:
        self._flight.answer(subject[len(self._prefix) + 1 :], _failure(headers, body))


def _failure(headers: bytes, body: bytes) -> str | None:
    if not body and frames.read_status(headers)[0] == _NO_RESPONDERS:
        return "no stream listens"
    if b'"error"' not in body:  # decoding every acknowledgement would cost more than sending
        return None
    reply = json.loads(body)
    return str(reply["error"].get("description", reply["error"])) if "error" in reply else None


def _windows(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    for start in range(0, len(messages), size):
        yield messages[start : start + size]
