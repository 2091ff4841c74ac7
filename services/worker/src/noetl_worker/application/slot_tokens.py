"""The token of a process that has slots: each task brings one, and heartbeats bring others before it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from noetl_contracts.clients import CommandClient, FrameClient
from noetl_core.canonical import JsonObject
from noetl_core.ports.commands import Worker
from noetl_core.ports.frames import FrameBeats, FrameKey


class TokenInUse:
    """Read by all channels of the process, from two threads."""

    def __init__(self, token: str, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.begin(token, seconds=seconds)

    def begin(self, token: str, *, seconds: float, left: float | None = None) -> None:
        """Another task has come, which may be of another stage, and whose token may have been made long ago."""
        used = 0.0 if left is None else seconds - left
        with self._lock:
            self._token, self._seconds, self._since = token, seconds, self._clock() - used

    def __call__(self) -> str:
        """As channels ask for it, with every call."""
        return self._token

    def replace(self, before: str, token: str) -> None:
        """Somebody was answered who had asked with the token before; of a task that has ended it says nothing."""
        with self._lock:
            if self._token == before:
                self._token, self._since = token, self._clock()

    @property
    def left(self) -> float:
        """For how much longer it is good, if it has an end at all."""
        return max(0.0, self._since + self._seconds - self._clock())

    @property
    def is_half_over(self) -> bool:
        """Whether there is another one to be had, if this one has an end at all."""
        return 0 < self._seconds <= 2 * (self._clock() - self._since)


class RenewingFrames(FrameClient):
    """Frames whose heartbeats bring tokens."""

    def __init__(self, owners: CommandClient, token: TokenInUse) -> None:
        super().__init__(owners)
        self._token = token

    async def heartbeat_frames(
        self,
        worker: Worker,
        keys: Sequence[FrameKey],
        *,
        lease_seconds: float = 0,
        progress: Mapping[FrameKey, JsonObject] | None = None,
    ) -> FrameBeats:
        """As any, and take the token that comes with the answer."""
        before = self._token()
        beats = await super().heartbeat_frames(worker, keys, lease_seconds=lease_seconds, progress=progress)
        if beats.token:
            self._token.replace(before, beats.token)
        return beats
