"""How every client connects: who calls, in which trace, by when at the latest, what may be tried again."""

import json
import math
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

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

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
Requests = AsyncIterable[RequestT] | Iterable[RequestT]


def open_channel(
    address: str,
    *,
    token: str | None,
    traceparent: Callable[[], str | None] = lambda: None,
    retryable_methods: Collection[str] = (),
    default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.aio.Channel:
    """Connects on first use, and again whenever the server comes back; close it with `async with`.

    A unary call without a timeout gets the default one; a stream must name a timeout, or NO_DEADLINE.
    `retryable_methods` are full names such as `/noetl.event.v1.EventService/Read`; name a method only if
    doing it twice is the same as doing it once.
    """
    outgoing = _Outgoing(token=token, traceparent=traceparent, default_timeout_seconds=default_timeout_seconds)
    # The library files an interceptor under the first kind that it is, so there is one object a kind.
    interceptors: list[grpc.aio.ClientInterceptor] = [
        _UnaryUnary(outgoing),
        _UnaryStream(outgoing),
        _StreamUnary(outgoing),
        _StreamStream(outgoing),
    ]
    options = _options(retryable_methods=retryable_methods, max_message_bytes=max_message_bytes)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    return grpc.aio.secure_channel(address, credentials, options=options, interceptors=interceptors)


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
        self, *, token: str | None, traceparent: Callable[[], str | None], default_timeout_seconds: float
    ) -> None:
        self._authorization = f"Bearer {token}" if token is not None else None
        self._traceparent = traceparent
        self._default_timeout_seconds = default_timeout_seconds

    def unary(self, details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
        timeout = self._default_timeout_seconds if details.timeout is None else details.timeout
        if timeout == NO_DEADLINE:
            raise TypeError(f"{_name(details)} is not a stream, so it must have a deadline")
        return self._details(details, timeout)

    def streaming(self, details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
        if details.timeout is None:
            raise TypeError(f"{_name(details)} is a stream: pass timeout=seconds or timeout=NO_DEADLINE")
        return self._details(details, None if details.timeout == NO_DEADLINE else details.timeout)

    def _details(self, details: grpc.aio.ClientCallDetails, timeout: float | None) -> grpc.aio.ClientCallDetails:
        metadata = grpc.aio.Metadata(*(details.metadata or ()))
        traceparent = self._traceparent()
        if self._authorization is not None and metadata.get(AUTHORIZATION_KEY) is None:
            metadata.add(AUTHORIZATION_KEY, self._authorization)
        if traceparent is not None and metadata.get(TRACEPARENT_KEY) is None:
            metadata.add(TRACEPARENT_KEY, traceparent)
        return grpc.aio.ClientCallDetails(
            details.method, timeout, metadata, details.credentials, details.wait_for_ready
        )


def _name(details: grpc.aio.ClientCallDetails) -> str:
    method: str | bytes = details.method  # bytes, whatever the stubs say
    return method.decode() if isinstance(method, bytes) else method


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, outgoing: _Outgoing) -> None:
        self._outgoing = outgoing

    async def intercept_unary_unary(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, RequestT], Awaitable[grpc.aio.UnaryUnaryCall[RequestT, ResponseT]]
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request: RequestT,
    ) -> grpc.aio.UnaryUnaryCall[RequestT, ResponseT]:
        return await continuation(self._outgoing.unary(client_call_details), request)


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, outgoing: _Outgoing) -> None:
        self._outgoing = outgoing

    async def intercept_unary_stream(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, RequestT], Awaitable[grpc.aio.UnaryStreamCall[RequestT, ResponseT]]
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request: RequestT,
    ) -> grpc.aio.UnaryStreamCall[RequestT, ResponseT]:
        return await continuation(self._outgoing.streaming(client_call_details), request)


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    def __init__(self, outgoing: _Outgoing) -> None:
        self._outgoing = outgoing

    async def intercept_stream_unary(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Requests[RequestT]],
            Awaitable[grpc.aio.StreamUnaryCall[RequestT, ResponseT]],
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request_iterator: Requests[RequestT],
    ) -> grpc.aio.StreamUnaryCall[RequestT, ResponseT]:
        return await continuation(self._outgoing.streaming(client_call_details), request_iterator)


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):
    def __init__(self, outgoing: _Outgoing) -> None:
        self._outgoing = outgoing

    async def intercept_stream_stream(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Requests[RequestT]],
            Awaitable[grpc.aio.StreamStreamCall[RequestT, ResponseT]],
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request_iterator: Requests[RequestT],
    ) -> grpc.aio.StreamStreamCall[RequestT, ResponseT]:
        return await continuation(self._outgoing.streaming(client_call_details), request_iterator)
