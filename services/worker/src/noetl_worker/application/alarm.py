"""One timer of an event loop for all limits of calls, almost none of which are ever reached."""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol


class Sleeper(Protocol):
    """Somebody who has set an alarm."""

    def ring(self) -> None:
        """It is time."""
        ...


class Alarm:
    """Rings at the time of each of them. The timer is for the first, and looks again who is the next after that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._times: dict[Sleeper, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def set(self, sleeper: Sleeper, when: float) -> None:
        """By the clock of the loop; whoever had set another time, has this one now."""
        self._times[sleeper] = when
        if self._timer is None or when < self._rings_at:
            self._wait_until(when)

    def clear(self, sleeper: Sleeper) -> None:
        """It is not to ring."""
        self._times.pop(sleeper, None)

    def _wait_until(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = self.loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        # A loop may call a little early, as far as its clock is coarse.
        now = max(self.loop.time(), self._rings_at)
        for sleeper in [sleeper for sleeper, when in self._times.items() if when <= now]:
            del self._times[sleeper]
            sleeper.ring()
        if self._times:
            self._wait_until(min(self._times.values()))


_of_thread = threading.local()


def alarm_of(loop: asyncio.AbstractEventLoop) -> Alarm:
    """That of the loop that runs in this thread."""
    known: Alarm | None = getattr(_of_thread, "alarm", None)
    if known is None or known.loop is not loop:
        known = _of_thread.alarm = Alarm(loop)
    return known
