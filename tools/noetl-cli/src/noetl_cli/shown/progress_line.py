"""How far a command is that goes through many executions."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

_QUIET_SECONDS: Final = 10.0
"""Between two lines where nobody overwrites them, such as in the log of a build."""


class ProgressLine:
    """How far it is, on stderr: one line that is written over, or one now and then."""

    def __init__(self, *, executions: int, events: int) -> None:
        self._executions = executions
        self._events = events
        self._begun = self._told = time.monotonic()
        self._live = sys.stderr.isatty()

    def __call__(self, executions: int, events: int) -> None:
        now = time.monotonic()
        if not self._live and now - self._told < _QUIET_SECONDS:
            return
        self._told = now
        rate = events / max(now - self._begun, 0.001)
        line = f"{executions} of {self._executions} executions, {events} of {self._events} events, {rate:,.0f} events/s"
        click.echo(f"\r\x1b[K{line}" if self._live else line, nl=not self._live, err=True)

    def clear(self) -> None:
        """Before the outcome is shown."""
        if self._live:
            click.echo("\r\x1b[K", nl=False, err=True)
