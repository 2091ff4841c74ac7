"""How every client connects: who calls, in which trace, by when at the latest, what may be tried again."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final, Self

import grpc

AUTHORIZATION_KEY: Final = "authorization"
TRACEPARENT_KEY: Final = "traceparent"

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
NO_DEADLINE: Final = math.inf
"""Passed as the timeout of a streaming call that is meant to last as long as both sides live."""

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
MAX_METADATA_BYTES: Final = 16 * 1024
KEEPALIVE_SECONDS: Final = 20
KEEPALIVE_TIMEOUT_SECONDS: Final = 5

Metadata = tuple[tuple[str, str], ...]


def open_channel(
    address: str,
    *,
    token: str | Callable[[], str] | None,
    traceparent: Callable[[], str | None] = lambda: None,
    retryable_methods: Collection[str] = (),
    default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.aio.Channel:
    """Connects on first use, and again whenever the server comes back; close it with `async with`.

    A token that is made anew from time to time is given as a function, asked for each call.
    A unary call without a timeout gets the default one; a stream must name a timeout, or NO_DEADLINE.
    `retryable_methods` are full names such as `/noetl.event.v1.EventService/Read`; name a method only if
    doing it twice is the same as doing it once.
    """
    outgoing = _Outgoing(token=token, traceparent=traceparent, default_timeout_seconds=default_timeout_seconds)
    options = _options(retryable_methods=retryable_methods, max_message_bytes=max_message_bytes)
    if credentials is None:
        return _Channel(grpc.aio.insecure_channel(address, options=options), outgoing)
    return _Channel(grpc.aio.secure_channel(address, credentials, options=options), outgoing)


def _options(*, retryable_methods: Collection[str], max_message_bytes: int) -> list[tuple[str, str | int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A restarted server is found again within seconds; by default it could take two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.enable_retries", 1),
        ("grpc.service_config", json.dumps(_service_config(retryable_methods))),
    ]


def _service_config(retryable_methods: Collection[str]) -> Mapping[str, object]:
    if not retryable_methods:
        return {}
    names = []
    for full_name in sorted(retryable_methods):
        service, separator, method = full_name.removeprefix("/").partition("/")
        if not (service and separator and method):
            raise ValueError(f"{full_name!r} is not a full method name such as '/package.Service/Method'")
        names.append({"service": service, "method": method})
    policy = {
        "maxAttempts": 4,
        "initialBackoff": "0.05s",
        "maxBackoff": "1s",
        "backoffMultiplier": 3,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return {"methodConfig": [{"name": names, "retryPolicy": policy}]}


class _Outgoing:
    """What every call gets, whatever its kind."""

    def __init__(
        self,
        *,
        token: str | Callable[[], str] | None,
        traceparent: Callable[[], str | None],
        default_timeout_seconds: float,
    ) -> None:
        self._token = token if callable(token) else None
        self._authorization = _bearer(token) if isinstance(token, str) else ()
        self._traceparent = traceparent
        self._default_timeout_seconds = default_timeout_seconds

    def unary_timeout(self, method: str, timeout: float | None) -> float:
        if timeout == NO_DEADLINE:
            raise TypeError(f"{method} is not a stream, so it must have a deadline")
        return self._default_timeout_seconds if timeout is None else timeout

    def stream_timeout(self, method: str, timeout: float | None) -> float | None:
        if timeout is None:
            raise TypeError(f"{method} is a stream: pass timeout=seconds or timeout=NO_DEADLINE")
        return None if timeout == NO_DEADLINE else timeout

    def metadata(self, given: Metadata | None) -> Metadata:
        own: Metadata = self._authorization if self._token is None else _bearer(self._token())
        if (traceparent := self._traceparent()) is not None:
            own = (*own, (TRACEPARENT_KEY, traceparent))
        if not given:
            return own
        names = {name for name, _ in given}
        return (*given, *(pair for pair in own if pair[0] not in names))


def _bearer(token: str) -> Metadata:
    return ((AUTHORIZATION_KEY, f"Bearer {token}"),)


class _Calls:
    """The calls of one method. The library's interceptors do the same by a task for each call, at twice its price."""

    def __init__(self, inner: Any, outgoing: _Outgoing, method: str, *, streams: bool) -> None:
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


class _Channel(grpc.aio.Channel):
    """A channel of the library whose calls say who calls, in which trace and until when."""

    def __init__(self, inner: grpc.aio.Channel, outgoing: _Outgoing) -> None:
        self._inner = inner
        self._outgoing = outgoing

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return _Calls(self._inner.unary_unary(method, *args, **options), self._outgoing, method, streams=False)

    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return _Calls(self._inner.unary_stream(method, *args, **options), self._outgoing, method, streams=True)

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return _Calls(self._inner.stream_unary(method, *args, **options), self._outgoing, method, streams=True)

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return _Calls(self._inner.stream_stream(method, *args, **options), self._outgoing, method, streams=True)

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
