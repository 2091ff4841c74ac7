"""Waiting for a condition with a deadline, where a test would otherwise sleep and hope."""

import time
from collections.abc import Callable
from typing import TypeVar

_POLL_SECONDS = 0.02
_T = TypeVar("_T")


def eventually(condition: Callable[[], _T], *, seconds: float = 60.0) -> _T:
    """The first truthy answer; an AssertionError that shows the last answer when time is over."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds:g} s; the last answer was {answer!r}")
        time.sleep(_POLL_SECONDS)
