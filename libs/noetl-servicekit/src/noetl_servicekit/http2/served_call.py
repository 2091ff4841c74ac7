"""One call as the server has it: its request, the task that works on it, and the way of its answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from noetl_contracts.http2 import frames
from noetl_contracts.http2.calls import (
    CONTENT_TYPE,
    MESSAGE_HEAD_BYTES,
    STATUS_OF_NUMBER,
    MessageReader,
    MessageRefused,
    message_bytes,
    message_text,
    metadata_headers,
    metadata_of,
    timeout_seconds,
)
from noetl_contracts.http2.header_blocks import Headers, literal
from noetl_contracts.http2.streams import Stream

if TYPE_CHECKING:
    from noetl_servicekit.http2.server_connection import Route, ServerConnection

ANSWER: Final[Headers] = ((":status", "200"), CONTENT_TYPE)
OK: Final[Headers] = (("grpc-status", "0"),)


class ServedCall(Stream, grpc.aio.ServicerContext[Any, Any]):
    """A stream and the context of its servicer in one, since both live exactly as long."""

    def __init__(
        self, connection: ServerConnection, stream_id: int, headers: Headers, named: Mapping[str, str], route: Route
    ) -> None:
        super().__init__(stream_id)
        self._connection = connection
        self._headers = headers
        self._named = named
        self._route = route
        self._messages: deque[bytes] = deque()
        self._held_bytes = 0
        self._request_ended = False
        self._waiter_for_request: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at: float | None = None
        self._expired = False
        self._hung_up = False
        self._answers = False
        self._ended = False
        self._initial: Headers = ()
        self._trailing: Headers = ()
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._callbacks: list[Callable[[Any], None]] = []
        timeout = named.get("grpc-timeout")
        self._reader = MessageReader(max_bytes=connection.max_message_bytes, encoding=named.get("grpc-encoding"))
        if timeout is not None and (seconds := timeout_seconds(timeout)) is not None:
            self._ends_at = connection.loop.time() + seconds
            self._timer = connection.loop.call_later(seconds, self._expire)

    # What the connection tells.

    def on_data(self, data: bytes, *, ends: bool) -> None:
        if self._request_ended:
            self._connection.give_up(self, frames.STREAM_CLOSED)
            return
        try:
            messages = self._reader.read(data)
        except MessageRefused as exc:
            self.refuse(exc.code, exc.reason)
            return
        if not self._route.streams_requests:
            self._messages.extend(messages)
            if len(self._messages) > 1:
                self.refuse(grpc.StatusCode.INTERNAL, "several messages where there must be one")
            elif ends:
                self.on_request_end()
            else:
                self._connection.acknowledge(self, held_bytes=0)
            return
        for message in messages:
            self._messages.append(message)
            self._held_bytes += len(message) + MESSAGE_HEAD_BYTES
        if ends:
            self.on_request_end()
        else:
            self._connection.acknowledge(self, held_bytes=self._held_bytes)
        self._wake_request()

    def on_request_end(self) -> None:
        if self._request_ended:
            self._connection.give_up(self, frames.STREAM_CLOSED)
            return
        self._request_ended = True
        if self._route.streams_requests:
            self._wake_request()
        elif len(self._messages) == 1 and self._reader.is_between_messages:
            self.start()
        else:
            self.refuse(grpc.StatusCode.INTERNAL, "no whole message where there must be one")

    def on_hang_up(self) -> None:
        """Nobody waits for the answer any more."""
        self._hung_up = True
        self._wake_request()
        if self._task is None:
            self._over()
        elif not self._task.done():
            self._task.cancel()

    def on_sent(self) -> None:
        super().on_sent()
        if self._ended and self.stream_id in self._connection.streams:
            self._leave()

    def start(self) -> None:
        self._task = self._connection.loop.create_task(self._work())
        # Not within the task: one that is cancelled before its first step does nothing at all.
        self._task.add_done_callback(self._done)
        self._connection.working(self)

    def _done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._finish_cancelled()
        self._over()

    @property
    def task(self) -> asyncio.Task[None]:
        """Of a call that somebody works on."""
        assert self._task is not None  # noqa: S101 - it was started
        return self._task

    def _expire(self) -> None:
        self._expired = True
        if self._task is None:
            self.refuse(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        elif not self._task.done():
            self._task.cancel()
        elif self.stream_id in self._connection.streams:
            self._connection.reset_stream(self, frames.CANCEL)  # the answer waits for windows, and nobody for it

    # The work.

    async def _work(self) -> None:
        route = self._route
        try:
            if route.streams_requests:
                request: Any = self._requests()
            else:
                request = self._messages.popleft()
                if route.deserialize is not None:
                    try:
                        request = route.deserialize(request)
                    except Exception as exc:
                        self.refuse(grpc.StatusCode.INTERNAL, f"the request cannot be read: {exc}")
                        return
            answer = await route.behaviour(request, self)
            if route.streams_answers:
                self._finish(self._code or grpc.StatusCode.OK, self._details)
            elif self._code in (None, grpc.StatusCode.OK):
                self._answer(answer if route.serialize is None else route.serialize(answer))
            else:
                self._finish(self._code, self._details)
        except grpc.aio.AbortError:
            self._finish(self._code or grpc.StatusCode.UNKNOWN, self._details)
        except asyncio.CancelledError:
            self._finish_cancelled()
        except Exception as exc:
            self._connection.on_stranger(route.full_name, exc)
            self._finish(grpc.StatusCode.UNKNOWN, "the method failed")

    def _finish_cancelled(self) -> None:
        """By the caller, its deadline, the server's end or the method itself: all that is left is to say so."""
        if self._expired:
            self._finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        elif self._connection.goes_away:
            self._finish(grpc.StatusCode.UNAVAILABLE, "the server is going away")
        else:
            self._finish(grpc.StatusCode.CANCELLED, "the method was cancelled")

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self.read()) is not grpc.aio.EOF:
            yield request

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        """End the call without anybody having worked on it, or whatever has come of that."""
        self._finish(code, details)
        if self._task is None:
            self._over()
        elif not self._task.done() and self._task is not asyncio.current_task(self._connection.loop):
            self._task.cancel()

    def _over(self) -> None:
        self._connection.over(self)
        if self.stream_id not in self._connection.streams:
            self._stop_timer()
        for callback in self._callbacks:
            callback(self)
        self._callbacks.clear()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The way of the answer.

    def _answer(self, answer: bytes) -> None:
        """One message and a good end: a single write, nearly always."""
        connection = self._connection
        if self._ended or self.stream_id not in connection.streams:
            return
        message = message_bytes(answer)
        if self._answers or self._initial or self._trailing or not connection.goes_at_once(self, len(message)):
            if not self._send(message):
                return
            self._finish(grpc.StatusCode.OK, self._details)
            return
        self._answers = self._ended = True
        head, tail = connection.plain_answer(self.stream_id)
        connection.send_at_once(self, head, message, tail)
        self._leave()

    def _send(self, message: bytes) -> bool:
        connection = self._connection
        if self._ended or self.stream_id not in connection.streams:
            return False
        self._begin_answer()
        if connection.goes_at_once(self, len(message)):
            connection.send_at_once(self, b"", message)
        else:
            connection.send_in_turn(self, message)
        return True

    def _begin_answer(self) -> None:
        if not self._answers:
            connection = self._connection
            block = connection.headers.write(ANSWER, self._initial)
            self._answers = True
            connection.send(connection.header_frames(self.stream_id, block, ends=False))

    def _finish(self, code: grpc.StatusCode, details: str) -> None:
        """Trailers; the whole answer where there was none before."""
        connection = self._connection
        if self._ended or self.stream_id not in connection.streams:
            return
        self._ended = True
        trailers: Headers = (("grpc-status", str(code.value[0])),)
        if details:
            trailers = (*trailers, ("grpc-message", message_text(details)))
        trailers = (*trailers, *self._trailing)
        if not self._answers:
            self._answers = True
            trailers = (*ANSWER, *self._initial, *trailers)
        if self.unsent:
            # Behind what waits for its turn: other blocks go first, so this one must not lean on the table.
            block = b"".join(map(literal, trailers))
            connection.send_in_turn(self, b"", connection.header_frames(self.stream_id, block, ends=True))
            return
        block = connection.headers.write(trailers[:1], trailers[1:])
        connection.send(connection.header_frames(self.stream_id, block, ends=True))
        self._leave()

    def _leave(self) -> None:
        self._stop_timer()
        if self._request_ended:
            self._connection.close_stream(self)
        else:
            # The rest of the request is of no use; the caller need not send it.
            self._connection.reset_stream(self, frames.NO_ERROR)

    # The context of a servicer.

    async def read(self) -> Any:
        while not self._messages:
            if self._request_ended:
                return grpc.aio.EOF
            if self._hung_up or self._ended:
                raise asyncio.CancelledError
            self._waiter_for_request = self._connection.loop.create_future()
            await self._waiter_for_request
        message = self._messages.popleft()
        self._held_bytes -= len(message) + MESSAGE_HEAD_BYTES
        if not self._request_ended and self.stream_id in self._connection.streams:
            self._connection.acknowledge(self, held_bytes=self._held_bytes)
        return message if self._route.deserialize is None else self._route.deserialize(message)

    def _wake_request(self) -> None:
        waiter = self._waiter_for_request
        if waiter is not None:
            self._waiter_for_request = None
            if not waiter.done():
                waiter.set_result(None)

    async def write(self, message: Any) -> None:
        data = message if self._route.serialize is None else self._route.serialize(message)
        if not self._send(message_bytes(data)):
            raise asyncio.CancelledError  # the caller has hung up, which this task is about to be told
        if self.unsent:
            await self._connection.sent(self)

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        self._initial = metadata_headers(initial_metadata)
        self._begin_answer()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        if code is grpc.StatusCode.OK:
            raise ValueError("a call cannot be aborted with OK")
        self._code, self._details = code, details
        if trailing_metadata:
            self._trailing = metadata_headers(trailing_metadata)
        raise grpc.aio.AbortError

    async def abort_with_status(self, status: Any) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._trailing = metadata_headers(trailing_metadata)

    def invocation_metadata(self) -> Any:
        return metadata_of(self._headers)

    def header(self, name: str) -> str | None:
        """What the caller sent under a name, as text."""
        return self._named.get(name)

    def set_code(self, code: Any) -> None:
        self._code = code if isinstance(code, grpc.StatusCode) else STATUS_OF_NUMBER[code]

    def set_details(self, details: str) -> None:
        self._details = details

    def set_compression(self, compression: Any) -> None:
        """Answers go as they are; a call may say so, and nothing changes."""

    def disable_next_message_compression(self) -> None:
        """None is compressed."""

    def peer(self) -> str:
        return self._connection.peer

    def peer_identities(self) -> Iterable[bytes] | None:
        return None

    def peer_identity_key(self) -> str | None:
        return None

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {}

    def time_remaining(self) -> Any:
        return None if self._ends_at is None else max(self._ends_at - self._connection.loop.time(), 0.0)

    def trailing_metadata(self) -> Any:
        return metadata_of(self._trailing)

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return self._details

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def cancelled(self) -> bool:
        return self._hung_up or self._expired

    def done(self) -> bool:
        return self._ended or self._hung_up
