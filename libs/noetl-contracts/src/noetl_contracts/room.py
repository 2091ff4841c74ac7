"""How a client behaves that is told that there is no room: it waits as long as it was asked to, and comes again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from noetl_core.errors import NoetlError, Overloaded

T = TypeVar("T")

SHORTEST_SECONDS: Final = 0.1
SPREAD: Final = 0.5
"""Of the time that was asked for, on top of it: those who were sent away together do not come back together."""


def asked_to_wait(error: NoetlError) -> float:
    """How long whoever has no room wants to be left alone; others may be asked again at once."""
    return max(error.retry_seconds, SHORTEST_SECONDS) if isinstance(error, Overloaded) else 0.0


async def when_there_is_room(
    ask: Callable[[], Awaitable[T]],
    *,
    patience_seconds: float,
    on_wait: Callable[[Overloaded, float], None] = lambda refusal, seconds: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
) -> T:
    """The answer, as soon as there is room; the refusal, if there is none for longer than one's patience."""
    until = clock() + patience_seconds
    while True:
        try:
            return await ask()
        except Overloaded as refusal:
            seconds = asked_to_wait(refusal) * (1 + SPREAD * chance())
            if clock() + seconds > until:
                raise
            on_wait(refusal, seconds)
            await sleep(seconds)
