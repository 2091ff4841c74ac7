"""The tasks that hold shares at the moment, each with a tag by which its job is found: one may have to end alone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from noetl_core.canonical import JsonValue


class LastingTasks:
    """Those of all calls of a driver; told of and asked by different threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._tasks: dict[str, tuple[str, Sequence[JsonValue]]] = {}

    @contextmanager
    def task(self, call_id: str, shares: Sequence[JsonValue]) -> Iterator[str]:
        """A task of a call while it runs; gives the tag for its job, which no other has."""
        with self._lock:
            tag = f"noetl-task-{next(self._numbers)}"
            self._tasks[tag] = (call_id, shares)
        try:
            yield tag
        finally:
            with self._lock:
                del self._tasks[tag]

    def useless(self, call_id: str, released: Collection[JsonValue]) -> tuple[str, ...]:
        """Tags of tasks of a call that hold nothing but what was released."""
        with self._lock:
            return tuple(
                tag
                for tag, (owner, shares) in self._tasks.items()
                if owner == call_id and all(share in released for share in shares)
            )
