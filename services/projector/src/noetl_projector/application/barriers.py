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
        self._moved[execution_id] = _Moved(state=after, since=(known.since if known else None) or oldest_ingest)

    async def close(self) -> None:
        """Write the barriers that are due and tell of them; what cannot be done now is tried again the next time."""
        await self.write()
        await self.tell()

    async def write(self) -> None:
        """The barriers of all that moved; raises while the database is away."""
        while self._moved:
            together = dict(list(self._moved.items())[:AT_ONCE])
            for execution_id in together:  # What moves from here on has its own oldest event.
                del self._moved[execution_id]
            try:
                written = await self._store.write_barriers(list(together))
            except BaseException:
                self._put_back(together)
                raise
            self._note(together, written)
            if len(together) < AT_ONCE:
                break

    async def tell(self) -> None:
        """In the logs of those that are due, up to the first that cannot be told now: nor could the others, likely."""
        for execution_id, (state, barrier) in list(self._untold.items()):
            if not await self._tell(state, barrier):
                self._untold[execution_id] = self._untold.pop(execution_id)  # another one is the first the next time
                return
            self._untold.pop(execution_id, None)

    def _put_back(self, moved: Mapping[int, _Moved]) -> None:
        for execution_id, one in moved.items():
            later = self._moved.get(execution_id, one)
            self._moved[execution_id] = replace(later, since=one.since or later.since)

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
        # Kept before it is told: should this process end in between, the log does not name one that goes.
        await self._store.keep_barrier(barrier.execution_id, barrier.version)
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
        return True
