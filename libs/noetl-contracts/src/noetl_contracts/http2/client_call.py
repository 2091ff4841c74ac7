"""One call on a connection, as its caller has it: what was answered so far, and how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import grpc
from grpc.aio import AioRpcError

from noetl_contracts.http2 import frames
from noetl_contracts.http2.calls import (
    CONTENT_TYPE,
    MessageReader,
    MessageRefused,
    ending,
    metadata_of,
    refusal,
    reset_status,
)
from noetl_contracts.http2.header_blocks import Headers
from noetl_contracts.http2.streams import Stream

if TYPE_CHECKING:
    from noetl_contracts.http2.client_connection import ClientConnection

_PLAIN_ANSWER: Final = ((":status", "200"), CONTENT_TYPE)
_PLAIN_END: Final = (("grpc-status", "0"),)


class NotTaken(AioRpcError):
    """The server says that it has not looked at the call, so it may be made again, whatever it does."""


def failure(code: grpc.StatusCode, details: str, trailers: Headers = ()) -> AioRpcError:
    metadata = grpc.aio.Metadata(*metadata_of(trailers))
    return AioRpcError(code, grpc.aio.Metadata(), metadata, details=details, debug_error_string=details)


class ClientCall(Stream):
    """Answers come into `messages`; `outcome` is None until the call is over, then its error or True."""

    __slots__ = (
        "_answers",
        "_connection",
        "_max_bytes",
        "_reader",
        "_waiter_for_more",
        "held_bytes",
        "messages",
        "outcome",
    )

    def __init__(self, connection: ClientConnection, stream_id: int, *, max_bytes: int) -> None:
        super().__init__(stream_id)
        self._connection = connection
        self._max_bytes = max_bytes
        self._answers = False
        self._reader = MessageReader(max_bytes=max_bytes)
        self._waiter_for_more: asyncio.Future[None] | None = None
        self.messages: deque[bytes] = deque()
        self.held_bytes = 0
        self.outcome: AioRpcError | bool | None = None

    def on_headers(self, headers: Headers, *, ends: bool) -> None:
        if not ends and not self._answers:
            if headers and headers[0][0] == ":status" and headers[0][1].startswith("1"):
                return  # what is said before the answer
            self._answers = True
            if headers != _PLAIN_ANSWER:
                self._begin(headers)
            return
        if not self._reader.is_between_messages:
            self._finish(failure(grpc.StatusCode.INTERNAL, "the answer ends in the middle of a message"))
            return
        if headers == _PLAIN_END:
            self._finish(None)
            return
        told = ending(headers) or refusal(headers) if ends else None
        if told is None:
            told = (grpc.StatusCode.INTERNAL, "the answer ends without a status")
        self._finish(None if told[0] is grpc.StatusCode.OK else failure(*told, trailers=headers))

    def _begin(self, headers: Headers) -> None:
        refused = refusal(headers)
        if refused is not None:
            self._give_up(failure(*refused))
            return
        encoding = next((value for name, value in headers if name == "grpc-encoding"), None)
        self._reader = MessageReader(max_bytes=self._max_bytes, encoding=encoding)

    def on_data(self, data: bytes, *, ends: bool) -> None:
        try:
            messages = self._reader.read(data)
        except MessageRefused as exc:
            self._give_up(failure(exc.code, exc.reason))
            return
        for message in messages:
            self.messages.append(message)
            self.held_bytes += len(message)
        if ends:
            self._finish(failure(grpc.StatusCode.INTERNAL, "the answer ends without a status"))
            return
        self._connection.acknowledge(self, held_bytes=self.held_bytes)
        if messages:
            self._wake()

    def on_reset(self, code: int) -> None:
        if code == frames.REFUSED_STREAM:
            self.not_taken("the server refused the call before it looked at it")
        else:
            self._finish(failure(reset_status(code), f"the server gave up the call with error {code} of HTTP/2"))

    def not_taken(self, details: str) -> None:
        self._finish(NotTaken(grpc.StatusCode.UNAVAILABLE, details=details))

    def on_lost(self, reason: str) -> None:
        self._finish(failure(grpc.StatusCode.UNAVAILABLE, reason))

    def expire(self) -> None:
        self._give_up(failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def cancel(self) -> None:
        if self.outcome is None:
            self._give_up(failure(grpc.StatusCode.CANCELLED, "cancelled by its caller"))

    def take(self) -> bytes:
        """The next message that is here."""
        message = self.messages.popleft()
        self.held_bytes -= len(message)
        if self.outcome is None:
            self._connection.acknowledge(self, held_bytes=self.held_bytes)
        return message

    async def over(self) -> None:
        """Wait for the end; a caller that is cancelled meanwhile gives the call up."""
        try:
            while self.outcome is None:
                await self._more()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def more(self) -> bool:
        """Wait for a message; false if there will be none any more."""
        try:
            while not self.messages and self.outcome is None:
                await self._more()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return bool(self.messages)

    async def _more(self) -> None:
        self._waiter_for_more = self._connection.loop.create_future()
        await self._waiter_for_more

    def _wake(self) -> None:
        waiter = self._waiter_for_more
        if waiter is not None:
            self._waiter_for_more = None
            if not waiter.done():
                waiter.set_result(None)

    def _give_up(self, error: AioRpcError) -> None:
        """The server is to stop: nobody waits for the rest."""
        if self.outcome is None:
            self._connection.reset_stream(self, frames.CANCEL)
            self._finish(error)

    def _finish(self, error: AioRpcError | None) -> None:
        if self.outcome is None:
            self.outcome = error or True
            if self.unsent:  # the rest of the request is of no use any more, which the server must hear
                self._connection.reset_stream(self, frames.CANCEL)
            self._connection.done(self)
            self._wake()
