"""Calls that failed and wait to be tried again: told with the worker's reports, for whoever asks what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from noetl_core.ports.commands import CommandKey
from noetl_core.ports.workers import WaitingRetry

MAX_TOLD: Final = 50
"""Items of a task's loop may all wait at once; nobody reads about more."""


class WaitingRetries:
    """Remembers who waits, for as long as it waits."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._waiting: dict[int, WaitingRetry] = {}
        self._last = 0

    @contextmanager
    def waiting(self, key: CommandKey, *, task: str, attempt: int, attempts: int, seconds: float) -> Iterator[None]:
        """A call that is tried again after so many seconds, as attempt so and so of so many."""
        self._last += 1
        mark = self._last
        self._waiting[mark] = WaitingRetry(
            command_id=key.command_id,
            task=task,
            attempt=attempt,
            attempts=attempts,
            next_at=self._now() + timedelta(seconds=seconds),
        )
        try:
            yield
        finally:
            del self._waiting[mark]

    def told(self) -> tuple[WaitingRetry, ...]:
        """Those that come first."""
        return tuple(sorted(self._waiting.values(), key=lambda one: one.next_at)[:MAX_TOLD])
