"""Token buckets that all slots of a worker share by key, so that a server is asked no faster than it allows."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

MAX_BUCKETS = 10_000
MAX_CLOSED_SECONDS = 86_400.0
"""A day: no server stops a worker for longer by a word."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float
    closed_until: float = 0.0


class RateLimits:
    """Waits before a call until its bucket has a token; waiting is no part of the call's own timeout."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    async def take(self, key: str, *, rate: float, per_seconds: float, burst: float) -> None:
        """Take one token of a bucket that gets `rate` of them every `per_seconds` and holds at most `burst`."""
        while True:
            delay = self._delay(key, per_second=rate / per_seconds, burst=max(burst, 1.0))
            if delay <= 0:
                return
            await self._sleep(delay)

    def close(self, key: str, *, seconds: float) -> None:
        """The server asked for a pause: nobody takes a token before it is over."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            until = self._clock() + min(seconds, MAX_CLOSED_SECONDS)
            bucket.closed_until = max(bucket.closed_until, until)

    def _delay(self, key: str, *, per_second: float, burst: float) -> float:
        """Take a token and return 0, or the seconds after which to ask again."""
        now = self._clock()
        bucket = self._buckets.setdefault(key, _Bucket(tokens=burst, filled_at=now))
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if now < bucket.closed_until:
            return bucket.closed_until - now
        bucket.tokens = min(burst, bucket.tokens + (now - bucket.filled_at) * per_second)
        bucket.filled_at = now
        if bucket.tokens >= 1.0:
            bucket.tokens -= 1.0
            return 0.0
        return (1.0 - bucket.tokens) / per_second
