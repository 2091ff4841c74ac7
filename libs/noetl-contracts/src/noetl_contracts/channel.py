"""How every client connects: who calls, in which trace, by when at the latest, what may be tried again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final

import grpc

from noetl_contracts.http2.client_channel import KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS, Http2Channel
from noetl_contracts.library_channel import LibraryChannel
from noetl_contracts.outgoing import AUTHORIZATION_KEY, NO_DEADLINE, TRACEPARENT_KEY, Outgoing
from noetl_contracts.own_channel import OwnChannel

__all__ = [
    "AUTHORIZATION_KEY",
    "DEFAULT_TIMEOUT_SECONDS",
    "KEEPALIVE_SECONDS",
    "MAX_MESSAGE_BYTES",
    "MAX_METADATA_BYTES",
    "NO_DEADLINE",
    "TRACEPARENT_KEY",
    "open_channel",
]

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
MAX_METADATA_BYTES: Final = 16 * 1024

_PLAIN_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^:/\[\]]+)):([0-9]{1,5})")
_PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")


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
    outgoing = Outgoing(token=token, traceparent=traceparent, default_timeout_seconds=default_timeout_seconds)
    options = _options(retryable_methods=retryable_methods, max_message_bytes=max_message_bytes)

    def library_channel() -> grpc.aio.Channel:
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    place = _plain_address(address)
    # What takes TLS, a proxy or a resolver is left to the library, which has them.
    if credentials is not None or place is None or any(os.environ.get(name) for name in _PROXY_VARIABLES):
        return LibraryChannel(library_channel(), outgoing)
    host, port = place
    channel = Http2Channel(
        host, port, authority=address, retryable=retryable_methods, max_message_bytes=max_message_bytes
    )
    return OwnChannel(channel, outgoing, library_channel)


def _plain_address(address: str) -> tuple[str, int] | None:
    """Host and port; None for the library's other ways to name a server."""
    found = _PLAIN_ADDRESS.fullmatch(address)
    return (found[1] or found[2], int(found[3])) if found else None


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
