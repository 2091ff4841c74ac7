"""What a slot runs at the moment: until when its claim can be used, and when it is to be heard of again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from noetl_core.ports.commands import CommandKey, GrantedCommand

UNUSED_LEASE_SHARE: Final = 0.1
"""The end of a lease that is not used: two clocks do not run equally fast."""
BEATS_A_LEASE: Final = 4
"""Of commands, and of what nobody answered: so many may be lost before the lease is."""
TOGETHER_SECONDS: Final = 0.25
"""Frames that are due so soon after another are told of with it; and a tenth of their interval at most."""

SHORTEST_WAIT_SECONDS: Final = 0.001
"""Sums of seconds are not exact: whoever wakes too early by less than a clock tells waits for it to move."""


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """A command or a frame, and what is known of its claim by our own clock."""

    command: GrantedCommand
    confirmed_at: float
    """When the claim was last known to count, from before we asked."""
    task: asyncio.Task[None] | None = None
    is_delivering: bool = False
    """Its result is on its way: whether it counts is for the answer to say, not for a heartbeat that crosses it."""
    unheard_at: float | None = None
    """When it was last told of in vain, if nobody has heard of it since."""

    def usable_until(self) -> float:
        """When somebody else may have it, with some room for clocks that differ."""
        return self.confirmed_at + self.command.lease_seconds * (1 - UNUSED_LEASE_SHARE)

    def confirm(self, asked_at: float) -> None:
        """Whoever was asked then says that the claim counts."""
        self.confirmed_at, self.unheard_at = asked_at, None

    def is_due(self, now: float, *, is_round: bool) -> bool:
        """Whether to tell of it: of commands in every round, of a frame in time, or at once if nobody has answered."""
        if self.command.frame is None:
            return is_round
        every = self._every_seconds
        together = min(TOGETHER_SECONDS, every / 10)
        return self.unheard_at is not None or now >= self.confirmed_at + every - together

    def beats_at(self) -> float:
        """When it is to be told of next; again, if nobody has answered."""
        if self.unheard_at is None:
            return self.confirmed_at + self._every_seconds
        return self.unheard_at + min(self._every_seconds, self.command.lease_seconds / BEATS_A_LEASE)

    @property
    def _every_seconds(self) -> float:
        """A frame is heard of as often as its policy says, and no more often."""
        frame = self.command.frame
        return self.command.lease_seconds / BEATS_A_LEASE if frame is None else frame.bounds.heartbeat_seconds


class BeatTimes:
    """Of everything that slots run; whoever waits for the next time hears of a frame that starts, and is due sooner."""

    def __init__(self, running: Mapping[CommandKey, Running], *, clock: Callable[[], float]) -> None:
        self._running = running
        self._clock = clock
        self._sooner = asyncio.Event()
        self._waits_until = math.inf

    def begin(self, running: Running) -> None:
        """Something starts that nobody who waits knows of."""
        if running.beats_at() < self._waits_until:
            self._sooner.set()

    @property
    def shortest_lease_seconds(self) -> float:
        """Of the commands that run now; frames have times of their own."""
        commands = (one.command for one in self._running.values() if one.command.frame is None)
        return min((command.lease_seconds for command in commands), default=math.inf)

    @property
    def is_frame_due(self) -> bool:
        """Whether a frame is to be told of now."""
        return self._clock() >= self._first_frame_at()

    async def wait(self, seconds: float) -> None:
        """Until a frame is to be told of or something starts that is due sooner, and no longer than this."""
        now = self._clock()
        self._sooner.clear()
        self._waits_until = min(now + seconds, self._first_frame_at())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self._waits_until - now, SHORTEST_WAIT_SECONDS)):
                await self._sooner.wait()

    def _first_frame_at(self) -> float:
        frames = (one for one in self._running.values() if one.command.frame is not None)
        return min((frame.beats_at() for frame in frames), default=math.inf)
