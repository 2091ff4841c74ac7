"""Nobody trusts delivery: stream heads are compared with what was folded, and unclaimed work is hinted again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from noetl_core.errors import NoetlError
from noetl_core.ports.bus import Message, Publisher
from noetl_core.ports.event_log import EventLog, HeadPage
from noetl_servicekit.logging import get_logger

from noetl_planner.application.actors import Actors
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

    async def __call__(self) -> None:
        """Compare once. Shards that were just gained are listed from the beginning of their open executions."""
        owned = frozenset(self._owned())
        gained = owned - self._covered
        began: datetime | None = None
        if gained:
            began = await self._list(gained, since=None)
        if owned - gained and self._since is not None:
            began = await self._list(owned - gained, since=self._since - _OVERLAP)
        self._covered = owned
        if began is not None:
            self._since = began
        self._actors.let_go_of_ended()

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


async def repeat_hints(
    actors: Actors, publisher: Publisher, metrics: PlannerMetrics, *, every_seconds: float, beat: Callable[[], None]
) -> None:
    """Wake workers again for commands that nobody claimed: a hint may have been lost, or all workers were busy."""
    seen: set[bytes] = set()
    for round_number in itertools.count():
        beat()
        await asyncio.sleep(every_seconds)
        hints = {hint.body: hint for hint in actors.hints_for_claimable()}
        waiting = [hint for body, hint in hints.items() if body in seen]
        seen = set(hints)
        messages = [
            Message(subject=hint.subject, message_id=f"rehint/{round_number}/{hint.body.decode()}", body=hint.body)
            for hint in waiting
        ]
        if not messages:
            continue
        try:
            await publisher.publish_batch(messages)
        except NoetlError as exc:
            logger.warning("planner.rehint_failed", reason=exc.message)
        else:
            metrics.hints_repeated.inc(len(messages))
