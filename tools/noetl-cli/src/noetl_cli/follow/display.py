"""Shows progress on a terminal, in place, or as plain lines where nobody could see it move."""

import os
import shutil
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Protocol, TextIO

import click
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Unavailable

from noetl_cli.follow.progress import Progress, Row, RowStatus
from noetl_cli.shown.durations import span_text
from noetl_cli.shown.executions import failure_text, status_text
from noetl_cli.shown.text import one_line

_COLOURS: Mapping[RowStatus, str] = {
    RowStatus.WAITING: "white",
    RowStatus.RUNNING: "cyan",
    RowStatus.DONE: "green",
    RowStatus.FAILED: "red",
    RowStatus.SKIPPED: "bright_black",
}
_MARKS: Mapping[RowStatus, str] = {
    RowStatus.WAITING: "○",
    RowStatus.RUNNING: "●",
    RowStatus.DONE: "✓",
    RowStatus.FAILED: "✗",
    RowStatus.SKIPPED: "·",
}
_ASCII_MARKS: Mapping[RowStatus, str] = {
    RowStatus.WAITING: ".",
    RowStatus.RUNNING: ">",
    RowStatus.DONE: "+",
    RowStatus.FAILED: "x",
    RowStatus.SKIPPED: "-",
}
_LINES_BESIDE_ROWS = 4


class Display(Protocol):
    """Told of every event, and now and then that time has passed."""

    def take(self, event: StoredEvent, *, now: datetime) -> None:
        """One more event."""
        ...

    def tick(self, *, now: datetime) -> None:
        """Time has passed."""
        ...

    def outage(self, reason: Unavailable) -> None:
        """The server went away, and is waited for."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was, with the last picture on it."""
        ...


def choose_display(progress: Progress, *, stream: TextIO, env: Mapping[str, str] = os.environ) -> Display:
    """In place on a terminal that can, unless NO_COLOR asks for plain text."""
    can_move = stream.isatty() and env.get("TERM") not in (None, "", "dumb") and not env.get("NO_COLOR")
    return LiveDisplay(progress, stream=stream) if can_move else PlainDisplay(progress)


class PlainDisplay:
    """One line per change of a step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._told: dict[str, tuple[object, ...]] = {}

    def take(self, event: StoredEvent, *, now: datetime) -> None:
        for row in self._progress.take(event, now=now):
            told = (row.status, row.activation, max(row.attempt, 1), row.call)  # entered and issued is one thing
            if self._told.get(row.step) != told:
                self._told[row.step] = told
                click.echo(_row_text(row, self._progress.server_time(now), width=0, mark=""))

    def tick(self, *, now: datetime) -> None:
        pass

    def outage(self, reason: Unavailable) -> None:
        click.echo(f"  the server is away, waiting for it: {one_line(reason.message)}")

    def close(self) -> None:
        pass


class LiveDisplay:
    """The list of steps, drawn over itself."""

    def __init__(self, progress: Progress, *, stream: TextIO = sys.stdout) -> None:
        self._progress = progress
        self._stream = stream
        self._height = 0
        self._outage: str | None = None
        self._marks = _MARKS if _can_encode(stream, "".join(_MARKS.values())) else _ASCII_MARKS
        stream.write("\x1b[?25l")  # the cursor would flicker

    def take(self, event: StoredEvent, *, now: datetime) -> None:
        self._outage = None
        self._progress.take(event, now=now)

    def tick(self, *, now: datetime) -> None:
        size = shutil.get_terminal_size()
        lines = self._picture(now, columns=size.columns, rows=max(size.lines - _LINES_BESIDE_ROWS, 1))
        back = f"\x1b[{self._height}A\r" if self._height else ""
        self._stream.write(back + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._stream.flush()
        self._height = len(lines)

    def outage(self, reason: Unavailable) -> None:
        self._outage = reason.message

    def close(self) -> None:
        self._stream.write("\x1b[?25h")
        self._stream.flush()

    def _picture(self, now: datetime, *, columns: int, rows: int) -> list[str]:
        server_now = self._progress.server_time(now)
        status = self._progress.state.execution.status
        shown, hidden = _most_interesting(self._progress.rows(), rows)
        width = max((len(row.step) for row in shown), default=0)
        lines = []
        if not status.is_final:  # how it ended is told below the list, once
            lines.append(f"  {status_text(status)}  {span_text(self._progress.seconds(now))}")
        if hidden:
            lines.append(f"    … {hidden} earlier steps")
        for row in shown:
            text = _row_text(row, server_now, width=width, mark=f"{self._marks[row.status]} ")[: columns - 1]
            lines.append(click.style(text, fg=_COLOURS[row.status]))
        if self._outage is not None:
            lines.append(f"  the server is away, waiting for it: {one_line(self._outage)}"[: columns - 1])
        return lines


def _most_interesting(rows: tuple[Row, ...], limit: int) -> tuple[tuple[Row, ...], int]:
    """As many as there is room for: what is still to end before what has ended, and later before earlier."""
    if len(rows) <= limit:
        return rows, 0
    open_rows = [row for row in rows if row.status in (RowStatus.WAITING, RowStatus.RUNNING)]
    ended = [row for row in rows if row not in open_rows]
    kept = (ended + open_rows)[-limit:]
    return tuple(row for row in rows if row in kept), len(rows) - len(kept)


def _row_text(row: Row, now: datetime, *, width: int, mark: str) -> str:
    notes = []
    seconds = row.seconds(now)
    if seconds is not None and row.status is not RowStatus.WAITING:
        notes.append(span_text(seconds))
    if row.items:
        notes.append(row.items)
    if row.call:
        notes.append(row.call)
    if row.activation > 1:
        notes.append(f"activation {row.activation}")
    if row.attempt > 1:
        notes.append(f"attempt {row.attempt}")
    if row.status is RowStatus.FAILED and row.error is not None:
        notes.append(failure_text({**row.error, "step": None}))
    name = one_line(row.step).ljust(width)
    return f"  {mark}{name}  {row.status:<7}  {'  '.join(notes)}".rstrip()


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
