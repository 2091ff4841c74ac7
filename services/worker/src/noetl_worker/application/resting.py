"""Commands that only wait for others to go on: their slots are lent to these, or a worker would wait for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from noetl_core.ports.commands import CommandKey


class Resting:
    """Which of the commands of this worker wait at the moment."""

    def __init__(self) -> None:
        self._keys: set[CommandKey] = set()
        self.on_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._keys)

    def waits_for(self, key: CommandKey) -> bool:
        """Whether a command may be what one of them waits for: it is of the same execution."""
        return any(key.execution_id == one.execution_id for one in self._keys)

    @contextmanager
    def resting(self, key: CommandKey) -> Iterator[None]:
        """A command rests while this lasts."""
        self._keys.add(key)
        self.on_change()
        try:
            yield
        finally:
            self._keys.discard(key)
            self.on_change()
