"""Folds a batch of events onto stored state: contiguous versions only, gaps filled from the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from noetl_core.fold import empty
from noetl_core.ports.projection_store import ProjectionStore
from noetl_core.upcasting.registry import Upcasters
from noetl_core.upcasting.releases import UPCASTERS

from noetl_projector.application.advance import Advance, Wanted
from noetl_projector.application.fold_events import Folded, mentioned_objects, unseen
from noetl_projector.application.known_states import KnownStates
from noetl_projector.application.read_missing import ReadMissing
from noetl_projector.application.remake_rows import RemakeRows
from noetl_projector.application.store_rows import StoreRows, Unholdable
from noetl_projector.application.troubles import Troubles
from noetl_projector.telemetry import ProjectorMetrics


class ProjectBatch:
    """One batch at a time, so that what is known and what is stored never differ by an unfinished write."""

    def __init__(
        self,
        store: ProjectionStore,
        read_missing: ReadMissing,
        store_rows: StoreRows,
        remakes: RemakeRows,
        *,
        owns: Callable[[int], bool],
        known: KnownStates,
        troubles: Troubles,
        metrics: ProjectorMetrics,
        began_at: datetime,
        log_branch: Callable[[], str] = lambda: "",
        upcasters: Upcasters = UPCASTERS,
    ) -> None:
        """`began_at`: what was committed since then is nobody's but ours, as long as nothing goes wrong."""
        self._store = store
        self._read_missing = read_missing
        self._store_rows = store_rows
        self._remakes = remakes
        self._owns = owns
        self._known = known
        self._troubles = troubles
        self._metrics = metrics
        self._began_at = began_at
        self._log_branch = log_branch
        self._upcasters = upcasters
        self._one_at_a_time = asyncio.Lock()
        self._lost: set[int] = set()
        """Shards that were somebody else's during this batch: what it knows of them may not be so any more."""

    def forget_shards(self, shards: Collection[int]) -> None:
        """They are somebody else's, or their log is another one; what is under way of them is not stored."""
        self._lost.update(shards)

    async def __call__(self, wanted: Sequence[Wanted]) -> Mapping[int, int]:
        """Project, each execution named once; returns the versions that their rows have now.

        Raises only while the database is away; what was written until then stays written, and known. What could not
        be read, folded or stored is among the troubles afterwards, and looked at again with the heads.
        """
        async with self._one_at_a_time:
            began_at = time.perf_counter()
            self._lost.clear()
            due = await self._due([one for one in wanted if self._may_project(one)])
            whole: list[Advance] = []
            gapped: list[Advance] = []
            for one in due:
                (gapped if one.needs_reading else whole).append(one)
            folded = await self._fold_in_hand(whole)
            if gapped:
                folded += await self._read_missing(gapped)
            folded = [(one, result) for one, result in folded if self._is_ours(one.shard)]
            stored = await self._store_rows(folded)
            reached = {one.execution_id: self._settle(one, result, stored) for one, result in folded}
            self._observe(folded, seconds=time.perf_counter() - began_at)
        return reached

    async def _fold_in_hand(self, due: Sequence[Advance]) -> list[tuple[Advance, Folded]]:
        wanted = {
            one.execution_id: keys
            for one in due
            if one.base.stream_version and (keys := mentioned_objects(one.fresh, self._upcasters))
        }
        objects = await self._store.find_objects(wanted) if wanted else {}
        return [(one, one.fold_in_hand(objects.get(one.execution_id, {}))) for one in due]

    def _is_ours(self, shard: int) -> bool:
        return self._owns(shard) and shard not in self._lost

    def _may_project(self, one: Wanted) -> bool:
        if not self._owns(one.shard):
            self._metrics.events_unowned.labels(str(one.shard)).inc(len(one.events))
            return False
        if one.log_branch and (self._log_branch() or one.log_branch) != one.log_branch:  # it has changed meanwhile
            self._metrics.foreign_messages.inc(len(one.events))
            return False
        return not self._troubles.is_quarantined(one.execution_id)

    async def _due(self, wanted: Sequence[Wanted]) -> list[Advance]:
        """Those of which something is missing, each with the state that it continues."""
        wanted = [one for one in wanted if not self._waits_to_be_remade(one)]
        unknown = [
            one.execution_id
            for one in wanted
            if self._known.version(one.execution_id) is None and not one.begins_after(self._began_at)
        ]
        stored = await self._store.load(unknown) if unknown else {}
        due: list[Advance] = []
        for one in wanted:
            if not self._is_ours(one.shard):  # lost while rows were loaded, and whatever waited for it is forgotten
                continue
            row = stored.get(one.execution_id)
            state = row.state if row is not None else self._known.get(one.execution_id)
            version = row.stream_version if row is not None else state.stream_version if state is not None else 0
            fresh = unseen(one.events, version)
            self._metrics.events_stale.inc(len(one.events) - len(fresh))
            target = max(one.target, fresh[-1].stream_version if fresh else 0)
            if target <= version:
                self._troubles.settle(one.execution_id, version=version)
            elif row is not None and (reason := self._remakes.needed(row)) is not None:
                self._remakes.want(one.execution_id, shard=one.shard, row_version=version, target=target, reason=reason)
                self._troubles.wait(one.execution_id, shard=one.shard, target=target)
            else:
                base = state if state is not None else empty(one.execution_id)
                due.append(Advance(wanted=one, base=base, fresh=fresh, upcasters=self._upcasters))
        return due

    def _waits_to_be_remade(self, one: Wanted) -> bool:
        if one.execution_id not in self._remakes:
            return False
        target = max(one.target, *(event.stream_version for event in one.events), 0)
        self._remakes.moved(one.execution_id, target)
        self._troubles.wait(one.execution_id, shard=one.shard, target=target)
        return True

    def _settle(self, one: Advance, result: Folded, stored: Mapping[int, int | Unholdable]) -> int:
        """Note what is still missing and why; returns the version of the row."""
        outcome = stored.get(one.execution_id, one.base.stream_version)
        version = one.base.stream_version if isinstance(outcome, Unholdable) else outcome
        reason = outcome.message if isinstance(outcome, Unholdable) else result.failure
        if not self._is_ours(one.shard):
            return version
        if reason:
            self._metrics.projection_errors.labels(str(one.shard)).inc()
            self._metrics.errors.inc()
            self._troubles.fail(
                one.execution_id,
                shard=one.shard,
                target=one.target,
                version=result.failed_version or result.state.stream_version,
                reason=reason,
            )
        elif version < one.target:
            if result.is_outdated:
                self._known.forget(one.execution_id)
            self._troubles.wait(one.execution_id, shard=one.shard, target=one.target)
        else:
            self._troubles.settle(one.execution_id, version=version)
        return version

    def _observe(self, folded: Sequence[tuple[Advance, Folded]], *, seconds: float) -> None:
        events = sum(result.events for _, result in folded)
        if events:
            self._metrics.batch_events.observe(events)
            self._metrics.last_batch_events.set(events)
            self._metrics.batch_seconds.observe(seconds)
        self._metrics.cached.set(len(self._known))
        self._metrics.quarantined.set(len(self._troubles.quarantined()))
