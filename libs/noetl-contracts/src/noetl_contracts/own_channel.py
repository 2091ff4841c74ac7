"""A channel of the library's shape over our own HTTP/2, for stubs to make calls on."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from noetl_contracts.http2.client_channel import Http2Channel
from noetl_contracts.http2.response_stream import ResponseStream
from noetl_contracts.library_channel import LibraryChannel
from noetl_contracts.outgoing import Metadata, Outgoing

_Serialize = Callable[[Any], bytes] | None
_Deserialize = Callable[[bytes], Any] | None


class _UnaryCalls:
    """The calls of a method with one answer."""

    def __init__(
        self, channel: Http2Channel, outgoing: Outgoing, method: str, serialize: _Serialize, deserialize: _Deserialize
    ) -> None:
        self._channel = channel
        self._outgoing = outgoing
        self._method = method
        self._serialize = serialize
        self._deserialize = deserialize

    async def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        *,
        wait_for_ready: bool | None = None,
    ) -> Any:
        timeout = self._outgoing.unary_timeout(self._method, timeout)
        known, other = self._outgoing.headers(metadata)
        message = request if self._serialize is None else self._serialize(request)
        answer = await self._channel.call(
            self._method, message, known, other, timeout=timeout, wait=bool(wait_for_ready)
        )
        return answer if self._deserialize is None else self._deserialize(answer)


class _StreamCalls(_UnaryCalls):
    """The calls of a method with a stream of answers."""

    def __call__(  # type: ignore[override]  # a stream instead of one answer
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        *,
        wait_for_ready: bool | None = None,
    ) -> ResponseStream:
        seconds = self._outgoing.stream_timeout(self._method, timeout)
        known, other = self._outgoing.headers(metadata)
        message = request if self._serialize is None else self._serialize(request)
        return ResponseStream(
            self._channel,
            self._method,
            message,
            known,
            other,
            timeout=seconds,
            wait=bool(wait_for_ready),
            deserialize=self._deserialize or _as_it_is,
        )


def _as_it_is(message: bytes) -> bytes:
    return message


class OwnChannel(grpc.aio.Channel):
    """A channel that speaks HTTP/2 by itself, in the loop of its caller.

    Requests that are streams, which no contract of ours has, go through the library, by a connection of their own.
    """

    def __init__(self, channel: Http2Channel, outgoing: Outgoing, library: Callable[[], grpc.aio.Channel]) -> None:
        self._channel = channel
        self._outgoing = outgoing
        self._make_library_channel = library
        self._library_channel: LibraryChannel | None = None

    def unary_unary(
        self,
        method: str,
        request_serializer: _Serialize = None,
        response_deserializer: _Deserialize = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _UnaryCalls(self._channel, self._outgoing, method, request_serializer, response_deserializer)

    def unary_stream(
        self,
        method: str,
        request_serializer: _Serialize = None,
        response_deserializer: _Deserialize = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _StreamCalls(self._channel, self._outgoing, method, request_serializer, response_deserializer)

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return self._library().stream_unary(method, *args, **options)

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return self._library().stream_stream(method, *args, **options)

    def _library(self) -> LibraryChannel:
        if self._library_channel is None:
            self._library_channel = LibraryChannel(self._make_library_channel(), self._outgoing)
        return self._library_channel

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close()
        if self._library_channel is not None:
            await self._library_channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.state(connect=try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.state_changes(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.ready()
