"""A FAIR pool for each execution that runs something; names are used again, since Spark forgets none of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SchedulerPools:
    """As many pools as executions ever ran at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[str, int] = {}
        self._users: dict[str, int] = {}

    @contextmanager
    def pool(self, execution_id: str) -> Iterator[str]:
        """The pool of an execution while one of its calls runs; calls of one execution share it."""
        with self._lock:
            if execution_id not in self._pools:
                taken = set(self._pools.values())
                self._pools[execution_id] = next(number for number in range(len(taken) + 1) if number not in taken)
            self._users[execution_id] = self._users.get(execution_id, 0) + 1
            name = f"execution-{self._pools[execution_id]}"
        try:
            yield name
        finally:
            with self._lock:
                self._users[execution_id] -= 1
                if not self._users[execution_id]:
                    del self._users[execution_id], self._pools[execution_id]
