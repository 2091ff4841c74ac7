"""What every call of ours says, whatever carries it: who calls, in which trace, by when at the latest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from noetl_contracts.http2.calls import metadata_headers
from noetl_contracts.http2.header_blocks import Headers

AUTHORIZATION_KEY: Final = "authorization"
TRACEPARENT_KEY: Final = "traceparent"

NO_DEADLINE: Final = math.inf
"""Passed as the timeout of a streaming call that is meant to last as long as both sides live."""

Metadata = tuple[tuple[str, str], ...]


class Outgoing:
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

    def headers(self, given: Metadata | None) -> tuple[Headers, Headers]:
        """What recurs in the calls of a channel, and what is of this call alone."""
        if given:
            return (), metadata_headers(self.metadata(given))
        known: Headers = self._authorization if self._token is None else _bearer(self._token())
        traceparent = self._traceparent()
        return known, () if traceparent is None else ((TRACEPARENT_KEY, traceparent),)


def _bearer(token: str) -> Metadata:
    if not token.isascii() or not token.isprintable():
        raise ValueError("the token has characters that metadata cannot carry")  # and it is not repeated here
    return ((AUTHORIZATION_KEY, f"Bearer {token}"),)
