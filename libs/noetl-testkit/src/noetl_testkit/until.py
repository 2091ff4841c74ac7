"""Waiting inside an event loop for a condition with a deadline, where a test would otherwise sleep and hope."""

import asyncio
import inspect
import time
from collections.abc import Callable

_POLL_SECONDS = 0.01


async def until(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Return when the answer, awaited if it can be, is truthy; an AssertionError shows the last one."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds:g} s; the last answer was {answer!r}")
        await asyncio.sleep(_POLL_SECONDS)
