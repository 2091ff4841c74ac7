"""Token buckets that all slots of a worker share by key, so that a server is asked no faster than it allows."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

MAX_BUCKETS = 10_000
MAX_CLOSED_SECONDS = 86_400.0
"""A day: no server stops a worker for longer by a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What is in it, by a clock that everybody has who shares it."""

    tokens: float
    filled_at: float
    closed_until: float = 0.0


Change = Callable[[Bucket | None], tuple[Bucket | None, float]]
"""What a bucket becomes, and what its caller wants to know; None is one that nobody has used."""


class Buckets(Protocol):
    """Where buckets are kept."""

    def change(self, key: str, change: Change) -> float:
        """Change a bucket, with nobody else in between."""
        ...


class OwnBuckets:
    """Buckets of one process; those that were used last are kept."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def change(self, key: str, change: Change) -> float:
        """One loop changes them, so nothing comes in between."""
        bucket, told = change(self._buckets.get(key))
        if bucket is not None:
            self._buckets[key] = bucket
            self._buckets.move_to_end(key)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        return told


class RateLimits:
    """Waits before a call until its bucket has a token; waiting is no part of the call's own timeout."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        buckets: Buckets | None = None,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._buckets = buckets or OwnBuckets()
        self.share = 1.0
        """Which part of a rate is for us, where others who share it cannot share buckets."""

    async def take(self, key: str, *, rate: float, per_seconds: float, burst: float) -> None:
        """Take one token of a bucket that gets `rate` of them every `per_seconds` and holds at most `burst`."""
        while True:
            per_second = rate / per_seconds * self.share
            delay = self._buckets.change(
                key, partial(_taken, now=self._clock(), per_second=per_second, burst=max(burst * self.share, 1.0))
            )
            if delay <= 0:
                return
            await self._sleep(delay)

    def close(self, key: str, *, seconds: float) -> None:
        """The server asked for a pause: nobody takes a token before it is over."""
        until = self._clock() + min(seconds, MAX_CLOSED_SECONDS)
        self._buckets.change(key, partial(_closed, until=until))


def _taken(bucket: Bucket | None, *, now: float, per_second: float, burst: float) -> tuple[Bucket, float]:
    """Take a token and tell 0, or the seconds after which to ask again."""
    bucket = bucket or Bucket(tokens=burst, filled_at=now)
    if now < bucket.closed_until:
        return bucket, bucket.closed_until - now
    tokens = min(burst, bucket.tokens + max(now - bucket.filled_at, 0.0) * per_second)
    if tokens >= 1.0:
        return replace(bucket, tokens=tokens - 1.0, filled_at=now), 0.0
    return replace(bucket, tokens=tokens, filled_at=now), (1.0 - tokens) / per_second


def _closed(bucket: Bucket | None, *, until: float) -> tuple[Bucket | None, float]:
    if bucket is None:
        return None, 0.0
    return replace(bucket, closed_until=max(bucket.closed_until, until)), 0.0
