"""Closes every second what has been committed of executions that moved, and tells it in their logs now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from noetl_core.append import Fence
from noetl_core.checkpoints.rules import EVENTS_BETWEEN, activity, checkpoint_request, is_due
from noetl_core.errors import Fenced, NoetlError
from noetl_core.fold import State
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.projection_store import Barrier, ProjectionStore
from noetl_servicekit.logging import get_logger

from noetl_projector.telemetry import ProjectorMetrics

logger = get_logger()

ROLE: Final = "projector"
AT_ONCE: Final = 1_000
"""Executions whose barriers are written together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    state: State
    since: datetime | None
    """When the oldest event that no barrier covers came into the log."""


class Barriers:
    """Collects in memory what moved; should that be lost, the next event of an execution closes what came before."""

    def __init__(
        self,
        store: ProjectionStore,
        log: EventLog,
        *,
        epoch: Callable[[int], int | None],
        fenced: Callable[[int], None],
        metrics: ProjectorMetrics,
        events_between: int = EVENTS_BETWEEN,
    ) -> None:
        self._store = store
        self._log = log
        self._epoch = epoch
        self._fenced = fenced
        self._metrics = metrics
        self._events_between = events_between
        self._moved: dict[int, _Moved] = {}
        self._untold: dict[int, tuple[State, Barrier]] = {}

    def moved(self, before: State, after: State, *, oldest_ingest: datetime | None) -> None:
        """Rows were written; a checkpoint that was told is no reason for another barrier."""
        if activity(before, after) <= 0:
            return
        execution_id = after.execution.execution_id
        known = self._moved.get(execution_id)
        self._moved[execution_id] = _Moved(state=after, since=known.since if known else oldest_ingest)

    async def close(self) -> None:
        """Write the barriers that are due; what cannot be written or told now is tried again the next time."""
        while self._moved:
            together = dict(list(self._moved.items())[:AT_ONCE])
            written = await self._store.write_barriers(list(together))
            for execution_id, moved in together.items():
                if self._moved.get(execution_id) is moved:
                    del self._moved[execution_id]
                else:  # It went on meanwhile, beyond what is closed or not: the next barrier says.
                    self._moved[execution_id] = replace(self._moved[execution_id], since=None)
            self._note(together, written)
            if len(together) < AT_ONCE:
                break
        for execution_id, (state, barrier) in list(self._untold.items()):
            if await self._tell(state, barrier):
                self._untold.pop(execution_id, None)

    def _note(self, moved: Mapping[int, _Moved], written: Iterable[Barrier]) -> None:
        oldest: dict[int, float] = {}
        for barrier in written:
            one = moved[barrier.execution_id]
            self._metrics.barriers.inc()
            if one.since is not None:
                age = max((barrier.committed_at - one.since).total_seconds(), 0.0)
                self._metrics.barrier_age.observe(age)
                oldest[barrier.shard] = max(age, oldest.get(barrier.shard, 0.0))
            if is_due(one.state, events_between=self._events_between):
                self._untold[barrier.execution_id] = (one.state, barrier)
        for shard, age in oldest.items():
            if self._epoch(shard) is not None:  # else its next owner says
                self._metrics.shard_barrier_age.labels(shard).set(age)

    async def _tell(self, state: State, barrier: Barrier) -> bool:
        """Whether nothing is left to do: it is told, by us or by somebody else, or never will be."""
        epoch = self._epoch(barrier.shard)
        if epoch is None:
            return True
        fence = Fence(role=ROLE, shard=barrier.shard, epoch=epoch)
        request = checkpoint_request(state, position=barrier.version, last_event_id=barrier.last_event_id, fence=fence)
        try:
            await self._log.append(request)
        except Fenced:
            self._fenced(barrier.shard)
            return True
        except NoetlError as exc:
            if not exc.retryable:  # The execution has ended, or another owner has told this one.
                logger.debug("projector.checkpoint_refused", execution_id=str(barrier.execution_id), code=exc.code)
            return not exc.retryable
        self._metrics.checkpoints_told.inc()
        await self._store.keep_barrier(barrier.execution_id, barrier.version)
        return True
