"""Wakes queries that wait for a version the moment its row is written by this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from noetl_core.errors import Overloaded

MAX_WAITING: Final = 10_000


class Announces(Protocol):
    """Whoever lets others know of rows."""

    def announce(self, execution_id: int) -> None:
        """A row was written."""
        ...


class Moved:
    """Says that an execution's row was written since it was made."""

    def __init__(self, wants: Callable[[], None]) -> None:
        self._event = asyncio.Event()
        self._wants = wants

    def set(self) -> None:
        """The row was written."""
        self._event.set()

    async def wait(self, *, timeout_seconds: float) -> None:
        """Until the row is written, or for a while."""
        self._wants()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._event.wait()


class VersionSignals:
    """Who waits for which execution."""

    def __init__(self) -> None:
        self._listeners: dict[int, set[Moved]] = {}
        self.waiting = 0
        self.ask: Callable[[bool], None] = lambda wanted: None
        """Has somebody announce rows, or no longer: most of the time nobody waits, and nobody need be woken."""
        self._asked = False

    @contextmanager
    def listen(self, execution_id: int) -> Iterator[Moved]:
        """Begin before looking at the row, so that nothing can be written unnoticed in between."""
        if self.waiting >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} queries wait for rows already")
        moved = Moved(self._want)
        self.waiting += 1
        self._listeners.setdefault(execution_id, set()).add(moved)
        try:
            yield moved
        finally:
            self.waiting -= 1
            others = self._listeners[execution_id]
            others.discard(moved)
            if not others:
                del self._listeners[execution_id]

    def announce(self, execution_id: int) -> None:
        """A row was written."""
        for moved in self._listeners.get(execution_id, ()):
            moved.set()

    def announce_all(self) -> None:
        """Any row may have been written."""
        for waiting in self._listeners.values():
            for moved in waiting:
                moved.set()

    def rest(self) -> None:
        """Now and then: if nobody waits, nothing need be announced."""
        if self._asked and not self.waiting:
            self._asked = False
            self.ask(False)

    def _want(self) -> None:
        if not self._asked:
            self._asked = True
            self.ask(True)
