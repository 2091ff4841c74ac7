"""Answers that come one after the other, as the caller of a streaming method reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import grpc
from grpc.aio import AioRpcError

from noetl_contracts.http2.client_call import ClientCall
from noetl_contracts.http2.client_channel import Http2Channel
from noetl_contracts.http2.header_blocks import Headers


class ResponseStream:
    """Begins when it is read first. Whoever stops reading cancels it, or drops it."""

    def __init__(
        self,
        channel: Http2Channel,
        method: str,
        message: bytes,
        authorization: Headers,
        metadata: Headers,
        *,
        timeout: float | None,
        wait: bool,
        deserialize: Callable[[bytes], Any],
    ) -> None:
        self._channel = channel
        self._request = (method, message, authorization, metadata)
        self._wait = wait
        self._deserialize = deserialize
        self._loop = asyncio.get_running_loop()
        self._ends_at = None if timeout is None else self._loop.time() + timeout
        self._timer: asyncio.TimerHandle | None = None
        self._call: ClientCall | None = None
        self._beginning: asyncio.Task[ClientCall] | None = None
        self._has_read = False
        self._cancelled = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message

    async def read(self) -> Any:
        """The next answer, or `grpc.aio.EOF`."""
        attempt = 1
        while True:
            if self._cancelled:
                raise asyncio.CancelledError
            try:
                call = self._call or await self._begin()
                if call.messages or await call.more():
                    self._has_read = True
                    return self._deserialize(call.take())
                if self._cancelled:
                    raise asyncio.CancelledError
                if isinstance(call.outcome, AioRpcError):
                    raise call.outcome
                self._stop_timer()
                return grpc.aio.EOF
            except AioRpcError as exc:
                self._stop_timer()
                if self._has_read:
                    raise
                attempt = await self._channel.before_next(self._request[0], exc, attempt=attempt, ends_at=self._ends_at)
                self._call = None

    async def _begin(self) -> ClientCall:
        beginning = self._loop.create_task(self._channel.begin(*self._request, ends_at=self._ends_at, wait=self._wait))
        self._beginning = beginning
        try:
            self._call = call = await beginning
        except asyncio.CancelledError:
            beginning.cancel()
            raise
        finally:
            self._beginning = None
        if self._cancelled:
            call.cancel()
            raise asyncio.CancelledError
        if self._ends_at is not None:
            self._timer = self._loop.call_at(self._ends_at, call.expire)
        return call

    def cancel(self) -> bool:
        """Whether there was something to be given up."""
        if self.done():
            return False
        self._cancelled = True
        self._stop_timer()
        if self._beginning is not None:
            self._beginning.cancel()  # nothing is sent any more
        if self._call is not None:
            self._call.cancel()
        return True

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._cancelled or (self._call is not None and self._call.outcome is not None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __del__(self) -> None:
        # Dropped in the middle. Garbage is collected on any thread, and the connection lives on its loop.
        call = getattr(self, "_call", None)
        if call is not None and call.outcome is None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drop, call, self._timer)

    @staticmethod
    def _drop(call: ClientCall, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
        call.cancel()
