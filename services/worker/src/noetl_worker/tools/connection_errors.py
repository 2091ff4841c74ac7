"""What kept a call from reaching its server, told from what the socket said; the same for every protocol."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CAUSES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTrouble:
    """Why there is no connection: a stable code, words, and whether trying again may help."""

    code: str
    message: str
    retryable: bool = True


def connection_trouble(error: BaseException) -> ConnectionTrouble:
    """The first reason among an error and its causes that says something definite."""
    for cause in causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                reason = f"the server's certificate is not trusted: {cause.verify_message}"
                return ConnectionTrouble(code="TLS_ERROR", message=reason, retryable=False)
            case ssl.SSLError():
                reason = f"no TLS connection: {cause.reason or 'the handshake failed'}"
                return ConnectionTrouble(code="TLS_ERROR", message=reason, retryable=False)
            case socket.gaierror():
                return ConnectionTrouble(code="DNS_ERROR", message="the host name is not known")
            case ConnectionRefusedError():
                return ConnectionTrouble(code="CONN_REFUSED", message="the connection was refused")
            case TimeoutError():
                return ConnectionTrouble(code="TIMEOUT", message="the server did not answer in time")
            case ConnectionError():
                return ConnectionTrouble(code="CONN_LOST", message="the connection was lost")
    return ConnectionTrouble(code="CONN_ERROR", message=str(error) or type(error).__name__)


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what led to it, also where several attempts were made at once; innermost last."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < MAX_CAUSES:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)
        waiting.extend(cause for cause in (one.__cause__, one.__context__) if cause is not None)
