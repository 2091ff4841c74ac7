"""Frames whose calls outlast their own limits: they hang, and are not kept alive any more.

A call that has a limit ends by itself when it is reached. One that does not, because its library ignores that it is
cancelled or keeps the event loop busy, would hold its frame for ever: the heartbeats of its slot go on without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from noetl_core.ports.commands import CommandKey, GrantedCommand

from noetl_worker.application.alarm import alarm_of

GRACE_SECONDS: Final = 10.0
"""For what a call does after its limit: a query is cancelled, a process is ended, a connection is closed."""


@dataclass(slots=True, eq=False)
class _Frame:
    clock: Callable[[], float]
    until: float
    """After `max_seconds` no row starts any more, so that only the last calls are left."""
    ends: dict[object, float] = field(default_factory=dict)
    """When each call that runs now is over, if it keeps to its limit."""


_of_frame: ContextVar[_Frame | None] = ContextVar("calls of a frame", default=None)


class FramesAtWork:
    """Those of one process; asked by the thread of heartbeats, which is not that of the calls."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._frames: dict[CommandKey, _Frame] = {}

    @contextmanager
    def run(self, command: GrantedCommand) -> Iterator[None]:
        """Whatever is called in here, by this task or by those that it starts, belongs to the frame."""
        if command.frame is None:
            raise AssertionError("not a frame")
        frame = _Frame(self._clock, until=self._clock() + command.frame.bounds.max_seconds)
        self._frames[command.key] = frame
        token = _of_frame.set(frame)
        try:
            yield
        finally:
            _of_frame.reset(token)
            if self._frames.get(command.key) is frame:
                del self._frames[command.key]

    def hung(self) -> frozenset[CommandKey]:
        """Frames that are past their `max_seconds` and the limit of a call."""
        now = self._clock()
        return frozenset(
            key
            for key, frame in list(self._frames.items())
            if now > frame.until and any(now > end + GRACE_SECONDS for end in list(frame.ends.values()))
        )


class CallLimit:
    """The limit of a call, as `asyncio.timeout` has it; the frame that it belongs to knows of it.

    It plays the part of `asyncio.Timeout` itself, since every row pays for it twice; and waits for nothing itself.
    """

    __slots__ = ("_alarm", "_cancelling", "_frame", "_is_expired", "_seconds", "_task", "_when")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._frame = _of_frame.get()
        self._when: float | None = None
        self._is_expired = False

    def __enter__(self) -> Self:
        """The time begins to count."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a limit is for a task")
        self._task, self._cancelling, self._alarm = task, task.cancelling(), alarm_of(loop)
        if self._seconds is not None:
            if self._frame is not None:
                self._frame.ends[self] = self._frame.clock() + self._seconds
            self._when = loop.time() + self._seconds
            self._alarm.set(self, self._when)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises, and never keeps an error to itself."""
        if self._frame is not None:
            self._frame.ends.pop(self, None)
        if self._when is not None:
            self._alarm.clear(self)
        # Somebody else may have cancelled the task as well: then that is what it ends with.
        if self._is_expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def when(self) -> float | None:
        """By the clock of the loop."""
        return self._when

    def reschedule(self, when: float | None) -> None:
        """At another time, or never."""
        self._when = when
        if when is None:
            self._alarm.clear(self)
        else:
            self._alarm.set(self, when)

    def expired(self) -> bool:
        """Whether it was this limit that ended the call."""
        return self._is_expired

    def ring(self) -> None:
        """The time is over."""
        self._task.cancel()
        self._is_expired = True
