"""Writes what was folded, each execution's row once, and lets everybody know what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from noetl_core.errors import NoetlError
from noetl_core.fold import prune
from noetl_core.ports.projection_store import ProjectedExecution, ProjectionStore, Refusal, Written
from noetl_core.surfaces.shapes import Surface

from noetl_projector.application.advance import Advance
from noetl_projector.application.barriers import Barriers
from noetl_projector.application.checkpoints import Checkpoints
from noetl_projector.application.fold_events import Folded
from noetl_projector.application.keep_snapshots import KeepSnapshots
from noetl_projector.application.known_states import KnownStates
from noetl_projector.application.version_signals import Announces
from noetl_projector.telemetry import ProjectorMetrics


class Unholdable(NoetlError):
    """The store cannot hold this row; the same row would be refused again."""

    code = "projection.unholdable"


Outcome = Written | Unholdable

MAX_ROWS: Final = 5_000
"""That are written at once, of all surfaces; fewer after a write that did not succeed in time, until one does.

The rows of one execution are written together however many they are: those of as many events as are folded at once.
"""


class StoreRows:
    """Only newer rows of the living owner win; that is for the store to say."""

    def __init__(
        self,
        store: ProjectionStore,
        *,
        epoch: Callable[[int], int | None],
        fenced: Callable[[int], None],
        known: KnownStates,
        told: Announces,
        checkpoints: Checkpoints,
        barriers: Barriers,
        snapshots: KeepSnapshots,
        metrics: ProjectorMetrics,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._fenced = fenced
        self._known = known
        self._told_of = told
        self._checkpoints = checkpoints
        self._barriers = barriers
        self._snapshots = snapshots
        self._metrics = metrics
        self._most_rows = MAX_ROWS

    async def __call__(self, folded: Sequence[tuple[Advance, Folded]]) -> Mapping[int, int | Unholdable]:
        """The versions that the rows have now, of those that were to be written; raises while the store is away."""
        due = [(one, result, row) for one, result in folded if (row := self.row(one, result)) is not None]
        reached: dict[int, int | Unholdable] = {}
        alone = 0
        while due:
            # All in one transaction, unless that was too much to be written in time before.
            count = 1 if alone else self._how_many([row for _, _, row in due])
            together = due[:count]
            outcome = await self._write([row for _, _, row in together])
            if isinstance(outcome, Unholdable) and count > 1:
                alone = count  # each by itself, so that only the one that cannot be held stays behind
                continue
            due, alone = due[count:], max(alone - 1, 0)
            for one, result, row in together:
                if isinstance(outcome, Unholdable):
                    reached[one.execution_id] = outcome
                else:
                    reached[one.execution_id] = self.tell(one, row, result, outcome)
        return reached

    def _how_many(self, rows: Sequence[ProjectedExecution]) -> int:
        """Executions from the first on whose rows are not too many to be written together; at least one."""
        total = 0
        for count, row in enumerate(rows):
            total += 1 + sum(len(part) for part in row.rows.values())
            if total > self._most_rows:
                return max(count, 1)
        return len(rows)

    def tell(self, one: Advance, row: ProjectedExecution, result: Folded, written: Written) -> int:
        """Everybody who is to know what became of a row; returns the version that is stored now."""
        refusal = written.refused.get(one.execution_id)
        if refusal is not None:
            self._was_refused(row, refusal)
            return refusal.stream_version
        self._was_written(row, result, written)
        self._barriers.moved(one.base, row.state, oldest_ingest=result.oldest_ingest)
        self._snapshots.moved(row.state, shard=row.shard)
        return row.state.stream_version

    def row(self, one: Advance, result: Folded) -> ProjectedExecution | None:
        """What there is to write, if anything, and if it is ours to write."""
        if result.state.stream_version <= one.base.stream_version:
            return None
        epoch = self._epoch(one.shard)
        if epoch is None:  # lost while the log was read
            self._metrics.events_unowned.labels(str(one.shard)).inc(result.events)
            return None
        return ProjectedExecution(
            state=prune(result.state),
            rows=result.surfaces.changed_parts(),
            shard=one.shard,
            epoch=epoch,
            base_version=one.base.stream_version,
            upcasters=one.upcasters.digest,
        )

    async def _write(self, rows: Sequence[ProjectedExecution]) -> Outcome:
        """In one transaction."""
        try:
            written = await self._store.write(rows)
        except NoetlError as exc:
            if exc.retryable:
                self._metrics.errors.inc()
                self._most_rows = max(sum(1 + sum(map(len, row.rows.values())) for row in rows) // 2, 1)
                raise
            return Unholdable(exc.message)
        self._most_rows = min(self._most_rows * 2, MAX_ROWS)
        return written

    def _was_written(self, row: ProjectedExecution, result: Folded, written: Written) -> None:
        if self._epoch(row.shard) == row.epoch:  # else others may have stored more by the time that it comes back
            self._known.put(row.shard, row.state)
        self._told_of.announce(row.state.execution.execution_id)
        self._metrics.events_projected.inc(result.events)
        self._metrics.rows_written.inc()
        self._metrics.last_batch_at.set(written.projected_at.timestamp())
        if result.oldest_ingest is not None:
            lag_seconds = max((written.projected_at - result.oldest_ingest).total_seconds(), 0.0)
            self._metrics.lag.observe(lag_seconds)
            if self._epoch(row.shard) is not None:  # else its next owner says
                self._metrics.shard_lag.labels(str(row.shard)).set(lag_seconds)
            self._checkpoints.projected(
                row.shard,
                last_event_id=row.state.last_event_id,
                projected_at=written.projected_at,
                lag_seconds=lag_seconds,
            )

    def _was_refused(self, row: ProjectedExecution, refusal: Refusal) -> None:
        execution_id = row.state.execution.execution_id
        self._known.forget(execution_id)
        self._told_of.announce(execution_id)
        if refusal.epoch > row.epoch:
            self._metrics.fenced.inc()
            self._fenced(row.shard)
        else:
            shard = str(row.shard)
            self._metrics.stale_records.labels(str(Surface.EXECUTION), shard).inc()
            for surface, rows in row.rows.items():
                if rows:
                    self._metrics.stale_records.labels(str(surface), shard).inc(len(rows))
