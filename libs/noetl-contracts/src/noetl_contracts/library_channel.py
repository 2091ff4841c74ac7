"""A channel of the library whose calls say who calls, in which trace and until when."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import grpc

from noetl_contracts.outgoing import Metadata, Outgoing


class _LibraryCalls:
    """The calls of one method. The library's interceptors do the same by a task for each call, at twice its price."""

    def __init__(self, inner: Any, outgoing: Outgoing, method: str, *, streams: bool) -> None:
        self._inner = inner
        self._metadata = outgoing.metadata
        self._timeout = outgoing.stream_timeout if streams else outgoing.unary_timeout
        self._method = method

    def __call__(
        self, request: Any = None, timeout: float | None = None, metadata: Metadata | None = None, **options: Any
    ) -> Any:
        return self._inner(
            request, timeout=self._timeout(self._method, timeout), metadata=self._metadata(metadata), **options
        )


class LibraryChannel(grpc.aio.Channel):
    """A channel of the library whose calls say who calls, in which trace and until when."""

    def __init__(self, inner: grpc.aio.Channel, outgoing: Outgoing) -> None:
        self._inner = inner
        self._outgoing = outgoing

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return _LibraryCalls(self._inner.unary_unary(method, *args, **options), self._outgoing, method, streams=False)

    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return _LibraryCalls(self._inner.unary_stream(method, *args, **options), self._outgoing, method, streams=True)

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return _LibraryCalls(self._inner.stream_unary(method, *args, **options), self._outgoing, method, streams=True)

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return _LibraryCalls(self._inner.stream_stream(method, *args, **options), self._outgoing, method, streams=True)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()
