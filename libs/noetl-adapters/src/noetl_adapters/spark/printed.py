"""What user code prints, by thread: calls of one process do not mix what they say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

MAX_CHARACTERS = 64 * 1024


class Printed:
    """The beginning of what one call has printed."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._left = MAX_CHARACTERS

    def take(self, text: str) -> None:
        """Keep what there is room for."""
        self._parts.append(text[: self._left])
        self._left -= len(self._parts[-1])

    def text(self) -> str:
        """All that was kept."""
        return "".join(self._parts)


class ThreadOutput:
    """Stands for `sys.stdout`; threads that nobody listens to write where they always did."""

    encoding = "utf-8"

    def __init__(self, otherwise: TextIO) -> None:
        self._otherwise = otherwise
        self._here = threading.local()

    @contextmanager
    def captured(self) -> Iterator[Printed]:
        """What this thread prints meanwhile."""
        printed = self._here.printed = Printed()
        try:
            yield printed
        finally:
            self._here.printed = None

    def write(self, text: str) -> int:
        """As of any text stream."""
        printed: Printed | None = getattr(self._here, "printed", None)
        if printed is None:
            return self._otherwise.write(text)
        printed.take(text)
        return len(text)

    def flush(self) -> None:
        """As of any text stream."""
        self._otherwise.flush()

    def isatty(self) -> bool:
        """Nobody sits here."""
        return False
