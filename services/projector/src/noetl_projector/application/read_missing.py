"""Fills gaps from the log: what the bus lost, what came too early, and what nobody has projected yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from noetl_core.errors import NoetlError
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.projection_store import ProjectionStore
from noetl_core.surfaces.shapes import Row

from noetl_projector.application.advance import Advance
from noetl_projector.application.fold_events import Folded, fold_on, follows, mentioned_objects
from noetl_projector.telemetry import ProjectorMetrics

READ_PAGE: Final = 500
MAX_READ_EVENTS: Final = 1_000
"""Of one execution in one batch, so that a long history delays its neighbours by a moment only."""
CONCURRENT_READS: Final = 8


class ReadMissing:
    """Reads and folds several executions at once; what could be read counts, also when the log goes away half-way."""

    def __init__(self, log: EventLog, store: ProjectionStore, metrics: ProjectorMetrics) -> None:
        self._log = log
        self._store = store
        self._metrics = metrics

    async def __call__(self, advances: Sequence[Advance]) -> list[tuple[Advance, Folded]]:
        """Each execution as far as it can be folded now; whoever is not there yet says why, or can try again."""
        batch = _Batch(self._log, self._store, self._metrics)
        return await asyncio.gather(*(batch.fold(one) for one in advances))


class _Batch:
    def __init__(self, log: EventLog, store: ProjectionStore, metrics: ProjectorMetrics) -> None:
        self._log = log
        self._store = store
        self._metrics = metrics
        self._slots = asyncio.Semaphore(CONCURRENT_READS)
        self._log_is_away = False

    async def fold(self, one: Advance) -> tuple[Advance, Folded]:
        async with self._slots:
            with one.span():
                return one, await self._fold(one)

    async def _fold(self, one: Advance) -> Folded:
        objects: dict[str, Row] = {}
        folded = one.begin(objects)
        # Who could not reach the log once need not try for all the others, each of whom would wait as long.
        while not self._log_is_away and not folded.failure and folded.events < MAX_READ_EVENTS:
            version = folded.state.stream_version
            if version >= one.target:
                break
            try:
                page = await self._log.read(
                    None, one.execution_id, from_version=version + 1, to_version=one.target, limit=READ_PAGE
                )
            except NoetlError as exc:
                self._metrics.errors.inc()
                if not exc.retryable:
                    return folded.failed(exc)
                self._log_is_away = True
                break
            if not page.events or not follows(page.events, version):
                break
            self._metrics.events_recovered.inc(len(page.events))
            if one.base.stream_version and (keys := mentioned_objects(page.events, one.upcasters) - objects.keys()):
                found = (await self._store.find_objects({one.execution_id: keys})).get(one.execution_id, {})
                if one.is_outdated_by(found):
                    return one.outdated()
                objects.update(found)
            folded = fold_on(folded, page.events)
        return folded
