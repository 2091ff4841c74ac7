"""The logs of a stack as one: the newest lines of all components by time, and those that follow."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from noetl_core.errors import NotFound

from noetl_cli.dev.files import last_lines
from noetl_cli.dev.home import StackHome

_POLL_SECONDS = 0.1
_LONGEST_LINE_BYTES = 64 * 1024
_TIME = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_TIME_KEYS = ("timestamp", "time", "ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line, and whose it is."""

    component: str
    text: str


class StackLog:
    """The logs as they are now, of one component or of all: `recent` looks back, `follow` goes on."""

    def __init__(self, home: StackHome, *, component: str | None = None) -> None:
        self._home = home
        self._component = component
        self._tails = {file: _Tail(file, offset=_end_of_lines(file)) for file in self._files()}
        if component is not None and not self._tails:
            raise NotFound("log of component", component)

    def recent(self, count: int) -> list[LogLine]:
        """The last lines, merged by the time that the lines carry."""
        timed = []
        for file, tail in self._tails.items():
            when = ""
            for text in last_lines(file, count, end=tail.offset):
                when = _time_of(text) or when  # a line without a time belongs to the one before it
                timed.append((when, LogLine(component=file.stem, text=text)))
        timed.sort(key=lambda pair: pair[0])  # stable: a component's own lines keep their order
        return [line for _, line in timed[-count:]] if count > 0 else []

    def follow(self, *, until: Callable[[], bool]) -> Iterator[LogLine]:
        """New lines as they are written; components that start later are followed too."""
        while True:
            last_round = until()  # asked before reading, so that nothing written until then is missed
            for file in self._files():
                for text in self._tails.setdefault(file, _Tail(file, offset=0)).read():
                    yield LogLine(component=file.stem, text=text)
            if last_round:
                return
            time.sleep(_POLL_SECONDS)

    def _files(self) -> Sequence[Path]:
        files = sorted(self._home.log_directory.glob("*.log"))
        return [file for file in files if self._component in (None, file.stem)]


class _Tail:
    """Reads whole lines as they are added to a file, also after it was replaced by one of the same name."""

    def __init__(self, path: Path, *, offset: int) -> None:
        self._path = path
        self._inode = path.stat().st_ino
        self.offset = offset

    def read(self) -> list[str]:
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self.offset:
                self._inode, self.offset = status.st_ino, 0
            file.seek(self.offset)
            *lines, rest = file.read().split(b"\n")
            self.offset = file.tell() - len(rest)
        return [line.decode("utf-8", "replace") for line in lines]


def _end_of_lines(path: Path) -> int:
    """Where the last finished line ends; what follows is still being written."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LONGEST_LINE_BYTES))
        rest = file.read().rpartition(b"\n")[2]
    return size - len(rest)


def _time_of(line: str) -> str | None:
    """The time in a line, in a form that sorts: JSON logs have a field for it, others begin with it."""
    text: object = line
    if line.startswith("{"):
        try:
            document = json.loads(line)
            text = next((document[key] for key in _TIME_KEYS if key in document), "")
        except ValueError:
            text = ""
    found = _TIME.search(str(text))
    if found is None:
        return None
    year, month, day, clock = found.groups()
    return f"{year}-{month}-{day} {clock.replace(',', '.')}"
