"""Tells planners what runs here, when it is time for that, and stops what no longer counts.

Each execution's by itself: whoever plans another one may be silent, and is not waited for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from noetl_core.canonical import JsonObject
from noetl_core.errors import NoetlError
from noetl_core.ports.commands import CommandKey, Commands, Heartbeats, Worker
from noetl_servicekit.logging import get_logger

from noetl_worker.application.call_progress import CallProgress
from noetl_worker.application.running import Running
from noetl_worker.telemetry import WorkerMetrics

logger = get_logger()

PATIENCE_SECONDS: Final = 1.0
"""With an answer that is to come, before what it is about is stopped: after a pause of the process there is one."""
SHORTEST_WAIT_SECONDS: Final = 0.001
"""Sums of seconds are not exact: whoever wakes too early by less than a clock tells waits for it to move."""


@dataclass(slots=True, kw_only=True, eq=False)
class Beat:
    """What is told of one execution at once, and is being answered."""

    asked_at: float
    told: dict[CommandKey, Running] = field(default_factory=dict)
    news: dict[CommandKey, JsonObject] = field(default_factory=dict)


class Beats:
    """Of everything that slots run; whoever waits for the next time hears of a frame that is due sooner."""

    def __init__(
        self,
        commands: Commands,
        running: Mapping[CommandKey, Running],
        *,
        worker: Worker,
        progress: CallProgress,
        metrics: WorkerMetrics,
        stop: Callable[[CommandKey, str], None],
        clock: Callable[[], float],
    ) -> None:
        self._commands = commands
        self._running = running
        self._worker = worker
        self._progress = progress
        self._metrics = metrics
        self._stop = stop
        self._clock = clock
        self._asked: dict[CommandKey, Beat] = {}
        """What was told and is not answered yet: until then it is not told again."""
        self._sooner = asyncio.Event()
        self._waits_until = math.inf

    @property
    def shortest_lease_seconds(self) -> float:
        """Of the commands that run now; frames have times of their own."""
        commands = (one.command for one in self._running.values() if one.command.frame is None)
        return min((command.lease_seconds for command in commands), default=math.inf)

    @property
    def is_frame_due(self) -> bool:
        """Whether a frame is to be told of now."""
        return self._clock() >= self._first_frame_at()

    @property
    def has_news(self) -> bool:
        """Whether calls are known to have got further than was told."""
        return any(self._progress.has_news(_place(key, running)) for key, running in self._running.items())

    def change(self, running: Running) -> None:
        """Something has started, or was answered, that nobody who waits knows of."""
        if running.beats_at() < self._waits_until:
            self._sooner.set()

    async def wait(self, seconds: float) -> None:
        """Until a frame is to be told of or something starts that is due sooner, and no longer than this."""
        now = self._clock()
        self._sooner.clear()
        self._waits_until = min(now + seconds, self._first_frame_at())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self._waits_until - now, SHORTEST_WAIT_SECONDS)):
                await self._sooner.wait()

    def take_due(self, *, is_round: bool) -> Sequence[Beat]:
        """What is to be told now: frames that are due, in a round all commands and news too."""
        asked_at = self._clock()
        beats: dict[int, Beat] = {}
        for key, running in self._running.items():
            is_due = running.is_due(asked_at, is_round=is_round)
            if key in self._asked or not (is_due or is_round):
                continue
            news = self._progress.take(_place(key, running))
            if is_due or news is not None:
                beat = self._asked[key] = beats.setdefault(key.execution_id, Beat(asked_at=asked_at))
                beat.told[key] = running
                beat.news.update({} if news is None else {key: news})
        return list(beats.values())

    async def tell_of(self, beat: Beat) -> None:
        """Tell that these are being run; stop what no longer counts, or was not heard of for too long."""
        keys = list(beat.told)
        try:
            answer = await self._commands.heartbeat(self._worker, keys, progress=beat.news)
        except NoetlError as exc:
            logger.warning("worker.heartbeat_failed", reason=exc.message)
            answer = Heartbeats(unanswered=frozenset(keys))
        finally:
            for key in keys:
                del self._asked[key]
        self._metrics.heartbeat_failures.inc(1 if answer.unanswered else 0)
        self._heed(beat, answer)
        self._stop_overdue(keys)

    def stop_unanswered(self) -> None:
        """Stop what was told long ago, and whose lease may be over before that is answered."""
        told_by = self._clock() - PATIENCE_SECONDS
        self._stop_overdue([key for key, beat in self._asked.items() if beat.asked_at < told_by])

    def _heed(self, beat: Beat, answer: Heartbeats) -> None:
        for key, running in beat.told.items():
            if self._running.get(key) is not running:
                continue
            if key in answer.lost or key in answer.unanswered:
                running.unheard_at = beat.asked_at
            else:
                running.confirm(beat.asked_at)
            self.change(running)
            if key in answer.lost and not running.is_delivering:
                self._stop(key, "lease lost")

    def _stop_overdue(self, keys: Sequence[CommandKey]) -> None:
        now = self._clock()
        for key in keys:
            running = self._running.get(key)
            if running is not None and now > running.usable_until():
                self._stop(key, "lease not renewed in time")

    def _first_frame_at(self) -> float:
        running = self._running.items()
        frames = (one for key, one in running if one.command.frame is not None and key not in self._asked)
        return min((frame.beats_at() for frame in frames), default=math.inf)


def _place(key: CommandKey, running: Running) -> tuple[int, str]:
    """Which step of which execution it is: what tools know of their calls."""
    return key.execution_id, running.command.step
