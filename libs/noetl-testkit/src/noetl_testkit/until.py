"""Waiting inside an event loop for a condition with a deadline, where a test would otherwise sleep and hope."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

_POLL_SECONDS = 0.01
_T = TypeVar("_T")


async def until(condition: Callable[[], _T] | Callable[[], Awaitable[_T]], *, seconds: float = 15.0) -> _T:
    """The first truthy answer; an AssertionError that shows the last answer when time is over."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        value: _T = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds:g} s; the last answer was {value!r}")
        await asyncio.sleep(_POLL_SECONDS)
