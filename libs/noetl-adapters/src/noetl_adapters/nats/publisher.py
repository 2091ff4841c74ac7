"""Publishes batches to JetStream: everything on the wire first, then all acknowledgements together."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import nats.errors
from nats.aio.msg import Msg
from noetl_contracts.subjects import MESSAGE_ID, STREAMS, StreamSpec
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.ports.bus import Message, PublishFailed

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
            self._inbox = await _AckInbox.open(session)
        if not self._provisioned:
            await provision_streams(session.client, self._streams, replicas=self._stream_replicas)
            self._provisioned = True
        return self._inbox

    async def _publish_window(self, inbox: _AckInbox, window: Sequence[Message], acknowledged: set[str]) -> None:
        flight = inbox.start(window)
        try:
            async with asyncio.timeout(self._ack_timeout_seconds):
                await inbox.send(flight)
                await flight.landed(inbox.session)
        except TimeoutError as exc:
            raise Unavailable(f"{len(flight.waiting)} of {len(window)} messages were not acknowledged in time") from exc
        except (nats.errors.Error, OSError) as exc:
            raise Unavailable(f"the connection to NATS was lost while sending: {exc}") from exc
        finally:
            acknowledged |= flight.acknowledged
        if flight.failure is not None:
            raise Unavailable(f"JetStream did not take a message: {flight.failure}")

    def _refusals(self, messages: Sequence[Message], *, max_bytes: int) -> Mapping[str, str]:
        """What no server will ever take is told apart here, so that it cannot stop what comes after it."""
        refused: dict[str, str] = {}
        for message in messages:
            if not message.subject.startswith(self._prefixes) or not _SUBJECT.fullmatch(message.subject):
                refused[message.message_id] = f"no stream has the subject {message.subject!r}"
            elif not all(map(_HEADER_NAME.fullmatch, message.headers)):
                refused[message.message_id] = "the name of a header has characters that are not allowed"
            elif len(message.body) + HEADER_ALLOWANCE_BYTES > max_bytes:
                refused[message.message_id] = f"{len(message.body)} bytes are more than NATS takes"
        return refused


class _Flight:
    """Messages that were sent together, until each has its acknowledgement or the connection is lost."""

    def __init__(self, messages: Mapping[str, Message]) -> None:
        self.messages = messages
        self.waiting = dict.fromkeys(messages)
        self.acknowledged: set[str] = set()
        self.failure: str | None = None
        self._all_answered = asyncio.Event()

    def answer(self, token: str, failure: str | None) -> None:
        if token not in self.waiting:
            return  # an answer to an earlier flight that came too late
        del self.waiting[token]
        if failure is None:
            self.acknowledged.add(self.messages[token].message_id)
        elif self.failure is None:
            self.failure = failure
        if not self.waiting:
            self._all_answered.set()

    async def landed(self, session: NatsSession) -> None:
        with session.telling_of_loss(self._all_answered.set):
            await self._all_answered.wait()
        if self.waiting:
            raise Unavailable(f"the connection to NATS was lost with {len(self.waiting)} messages in flight")


class _AckInbox:
    """Where JetStream answers in one session.

    The client library has this too, but an error that JetStream answers with never reaches its futures.
    """

    def __init__(self, session: NatsSession) -> None:
        self.session = session
        self._prefix = session.client.new_inbox()
        self._tokens = count()
        self._flight = _Flight({})

    @classmethod
    async def open(cls, session: NatsSession) -> _AckInbox:
        inbox = cls(session)
        try:
            await session.client.subscribe(f"{inbox._prefix}.*", cb=inbox._receive)
        except (nats.errors.Error, OSError) as exc:
            raise Unavailable(f"NATS is away: {exc}") from exc
        return inbox

    def start(self, messages: Sequence[Message]) -> _Flight:
        self._flight = _Flight({str(next(self._tokens)): message for message in messages})
        return self._flight

    async def send(self, flight: _Flight) -> None:
        client = self.session.client
        for number, (token, message) in enumerate(flight.messages.items(), start=1):
            await client.publish(
                message.subject,
                message.body,
                reply=f"{self._prefix}.{token}",
                headers={**message.headers, MESSAGE_ID: message.message_id},
            )
            if number % WRITE_EVERY_MESSAGES == 0:
                await asyncio.sleep(0)  # publishing only fills a buffer: let it go out while we fill on

    async def _receive(self, answer: Msg) -> None:
        self._flight.answer(answer.subject.rpartition(".")[2], _failure(answer))


def _failure(answer: Msg) -> str | None:
    if not answer.data and answer.headers and answer.headers.get("Status") == _NO_RESPONDERS:
        return "no stream listens"
    if b'"error"' not in answer.data:  # decoding every acknowledgement would cost more than sending
        return None
    reply = json.loads(answer.data)
    return str(reply["error"].get("description", reply["error"])) if "error" in reply else None


def _windows(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    for start in range(0, len(messages), size):
        yield messages[start : start + size]
