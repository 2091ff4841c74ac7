"""Nobody trusts delivery: stream heads are compared with what was folded, and unclaimed work is hinted again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta

from noetl_core.append import Hint
from noetl_core.errors import NoetlError
from noetl_core.ports.bus import Message, Publisher
from noetl_core.ports.event_log import EventLog, HeadPage
from noetl_servicekit.logging import get_logger

from noetl_planner.application.actors import Actors
from noetl_planner.application.backlog import (
    PublishedBacklog,
    PublishedFrames,
    backlog_of,
    frame_backlog_of,
    owners_of_frames,
)
from noetl_planner.telemetry import PlannerMetrics

logger = get_logger()

_PAGE = 1000
_OVERLAP = timedelta(seconds=15)
"""Transactions last at most 5 s, so nothing that committed late can hide behind this."""


class HeadSweep:
    """Finds executions that moved without the planner noticing."""

    def __init__(self, log: EventLog, actors: Actors, *, owned: Callable[[], Collection[int]]) -> None:
        self._log = log
        self._actors = actors
        self._owned = owned
        self._since: datetime | None = None
        self._covered: frozenset[int] = frozenset()

    def forget(self, shards: Collection[int]) -> None:
        """Shards were lost, if only for a moment: what was known about them is listed anew when they come back."""
        self._covered -= frozenset(shards)

    async def __call__(self) -> None:
        """Compare once. Shards that were just gained are listed from the beginning of their open executions."""
        owned = frozenset(self._owned())
        gained = owned - self._covered
        began: datetime | None = None
        if gained:
            began = await self._list(gained, since=None)
        if owned - gained and self._since is not None:
            began = await self._list(owned - gained, since=self._since - _OVERLAP)
        self._covered = owned & frozenset(self._owned())
        if began is not None:
            self._since = began
        self._actors.let_go_of_ended()
        self._actors.retry_quarantined()

    async def _list(self, shards: Collection[int], *, since: datetime | None) -> datetime:
        after: tuple[datetime, int] | None = None
        began: datetime | None = None
        while True:
            page: HeadPage = await self._log.moved_heads(
                sorted(shards), moved_since=since, after=after, open_only=since is None, limit=_PAGE
            )
            began = began or page.now
            for head in page.heads:
                self._actors.expect(head.execution_id, head.version, terminal=head.terminal)
            if not page.more:
                return began
            last = page.heads[-1]
            after = (last.updated_at, last.execution_id)


async def sweep_heads(
    sweep: HeadSweep, *, every_seconds: float, gained: asyncio.Event, beat: Callable[[], None]
) -> None:
    """Compare every few seconds, and at once when shards were gained."""
    while True:
        beat()
        await sweep()
        gained.clear()
        try:
            async with asyncio.timeout(every_seconds):
                await gained.wait()
        except TimeoutError:
            continue


class RepeatedHints:
    """Which unclaimed commands to wake workers for again: after one round, two, four … and then every hour or so.

    Doubling keeps a queue of waiting work from filling the stream with wake-ups that nobody has a slot for.
    """

    MAX_PAUSE_ROUNDS = 512

    def __init__(self) -> None:
        self._waiting: dict[bytes, int] = {}

    def due(self, hints: Iterable[Hint]) -> list[tuple[Hint, int]]:
        """What to send in this round, each with the number of rounds that it has waited."""
        current = {hint.body: hint for hint in hints}
        self._waiting = {body: self._waiting.get(body, -1) + 1 for body in current}
        return [(current[body], rounds) for body, rounds in self._waiting.items() if self._is_due(rounds)]

    def _is_due(self, rounds: int) -> bool:
        is_power_of_two = rounds > 0 and rounds & (rounds - 1) == 0
        return is_power_of_two or (rounds > 0 and rounds % self.MAX_PAUSE_ROUNDS == 0)


def repeated_message(hint: Hint, rounds: int) -> Message:
    """The bus drops what it has had under the same id, and the same work may come to wait more than once.

    So the id has that of the hint, in which the version of the stream tells these times apart.
    """
    return Message(subject=hint.subject, message_id=f"rehint/{rounds}/{hint.message_id}", body=hint.body)


async def repeat_hints(
    actors: Actors, publisher: Publisher, metrics: PlannerMetrics, *, every_seconds: float, beat: Callable[[], None]
) -> None:
    """Wake workers again for commands that nobody claimed: a hint may have been lost, or all workers were busy."""
    repeated, backlog, frames = RepeatedHints(), PublishedBacklog(), PublishedFrames()
    while True:
        beat()
        await asyncio.sleep(every_seconds)
        for (pool, state), count in backlog.update(backlog_of(actors.states())).items():
            metrics.backlog.labels(pool=pool, state=state).set(count)
        for (kind, status), count in frame_backlog_of(actors.states()).items():
            metrics.frame_backlog.labels(stage_kind=kind, status=status).set(count)
        for (tenant, organization, kind, status), count in frames.update(owners_of_frames(actors.states())).items():
            detail = metrics.frame_backlog_detail
            detail.labels(tenant_id=tenant, organization_id=organization, stage_kind=kind, status=status).set(count)
        messages = [repeated_message(hint, rounds) for hint, rounds in repeated.due(actors.hints_for_claimable())]
        if not messages:
            continue
        try:
            await publisher.publish_batch(messages)
        except NoetlError as exc:
            logger.warning("planner.rehint_failed", reason=exc.message)
        else:
            metrics.hints_repeated.inc(len(messages))
