"""How far each shard has come, noted at most once a second however many batches there were."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from noetl_core.ports.projection_store import ProjectionStore, ShardCheckpoint

from noetl_projector.telemetry import ProjectorMetrics


class Checkpoints:
    """Collects in memory; what is lost with the process only makes the next one compare a little more."""

    def __init__(self, store: ProjectionStore, metrics: ProjectorMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._dirty: dict[int, ShardCheckpoint] = {}

    def projected(self, shard: int, *, last_event_id: int, projected_at: datetime, lag_seconds: float) -> None:
        """Rows of a shard were written."""
        self._dirty[shard] = replace(
            self._of(shard), last_event_id=last_event_id, projected_at=projected_at, lag_seconds=lag_seconds
        )

    def caught_up(self, marks: Mapping[int, datetime]) -> None:
        """Every head of these shards that moved before its mark is in the rows."""
        for shard, mark in marks.items():
            self._dirty[shard] = replace(self._of(shard), caught_up_to=mark)

    def forget_shards(self, shards: Collection[int]) -> None:
        """How far they are is for their next owner to say."""
        for shard in shards:
            self._dirty.pop(shard, None)

    async def marks(self, shards: Collection[int]) -> Mapping[int, datetime]:
        """Where the comparison of shards was left by their last owner; those that were never compared are left out."""
        stored = await self._store.checkpoints(shards)
        return {shard: one.caught_up_to for shard, one in stored.items() if one.caught_up_to is not None}

    async def flush(self) -> None:
        """Write what has changed; it stays changed if that fails."""
        dirty = dict(self._dirty)
        if not dirty:
            return
        await self._store.write_checkpoints(list(dirty.values()))
        for shard, one in dirty.items():
            if shard not in self._dirty:
                continue  # lost meanwhile
            if self._dirty[shard] is one:
                del self._dirty[shard]
            if one.caught_up_to is not None:
                self._metrics.checkpoint_at.labels(str(shard)).set(one.caught_up_to.timestamp())

    def _of(self, shard: int) -> ShardCheckpoint:
        return self._dirty.get(shard) or ShardCheckpoint(shard=shard)
