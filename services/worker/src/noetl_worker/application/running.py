"""What a slot runs at the moment: until when its claim can be used, and when it is to be heard of again."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Final

from noetl_core.ports.commands import GrantedCommand

UNUSED_LEASE_SHARE: Final = 0.1
"""The end of a lease that is not used: two clocks do not run equally fast."""
BEATS_A_LEASE: Final = 4
"""Of commands, and of what nobody answered: so many may be lost before the lease is."""
TOGETHER_SECONDS: Final = 0.25
"""Frames that are due so soon after another are told of with it; and a tenth of their interval at most."""
SHORTEST_BEAT_SECONDS: Final = 0.25
"""Of frames that want to be heard of more often than is any use: each time is an event."""
USED_LEASE_SHARE: Final = 0.1
"""Of a lease that was granted before: with more of it gone, it is told at once that somebody has the frame."""


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

    def __post_init__(self) -> None:
        self.begin(self.command, self.confirmed_at)

    def begin(self, command: GrantedCommand, asked_at: float) -> None:
        """It is another one from here on. A frame that is granted again has used some of its lease, unheard of."""
        self.command, self.confirmed_at, self.unheard_at = command, asked_at, None
        left, lease = command.lease_left_seconds, command.lease_seconds
        if left is not None and left < lease * (1 - USED_LEASE_SHARE):
            self.unheard_at = -math.inf

    def usable_until(self) -> float:
        """When somebody else may have it, with some room for clocks that differ."""
        return self.confirmed_at + self.command.lease_seconds * (1 - UNUSED_LEASE_SHARE)

    def confirm(self, asked_at: float) -> None:
        """Whoever was asked then says that the claim counts."""
        self.confirmed_at, self.unheard_at = asked_at, None

    def is_due(self, now: float, *, is_round: bool) -> bool:
        """Whether to tell of it: in a round of commands and of what nobody has heard, of a frame in time, or almost."""
        if self.command.frame is None or (is_round and self.unheard_at is not None):
            return is_round
        return now >= self.beats_at() - min(TOGETHER_SECONDS, self._every_seconds / 10)

    def beats_at(self) -> float:
        """When it is to be told of next; again, if nobody has answered."""
        if self.unheard_at is None:
            return self.confirmed_at + self._every_seconds
        return self.unheard_at + min(self._every_seconds, self.command.lease_seconds / BEATS_A_LEASE)

    @property
    def _every_seconds(self) -> float:
        """A frame is heard of as often as its policy says, and no more often."""
        frame = self.command.frame
        if frame is None:
            return self.command.lease_seconds / BEATS_A_LEASE
        return max(frame.bounds.heartbeat_seconds, SHORTEST_BEAT_SECONDS)
