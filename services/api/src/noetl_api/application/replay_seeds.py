"""Where replays begin: at a snapshot that could be proven, else at the start."""

from __future__ import annotations

import asyncio
from typing import Final

from noetl_core.errors import Corrupt, NoetlError
from noetl_core.ports.event_log import Scope
from noetl_core.ports.snapshots import FetchSnapshots
from noetl_core.replay.history import Seed
from noetl_core.replay.snapshots import Rules, open_snapshot
from noetl_servicekit.logging import get_logger

from noetl_api.telemetry import ReplayMetrics

logger = get_logger()

WORTH_ASKING: Final = 1_000
"""Events that are folded sooner than anybody could be asked for something better."""


class ReplaySeeds:
    """Port `Snapshots`. Whatever is wrong with a snapshot, or with whoever keeps them, costs time and nothing else."""

    def __init__(
        self, snapshots: FetchSnapshots, rules: Rules, *, metrics: ReplayMetrics, worth_asking: int = WORTH_ASKING
    ) -> None:
        self._snapshots = snapshots
        self._rules = rules
        self._metrics = metrics
        self._worth_asking = worth_asking

    async def seed(self, scope: Scope | None, execution_id: int, *, at_or_below: int) -> Seed | None:
        """The newest that fits."""
        if at_or_below < self._worth_asking:
            return None
        try:
            fetched = await self._snapshots.fetch(scope, execution_id, at_or_below=at_or_below, rules=self._rules)
        except NoetlError as exc:
            logger.info("replay.snapshots_away", execution_id=str(execution_id), reason=exc.message)
            return None
        if fetched is None or fetched[0].position > at_or_below:
            return None
        snapshot, parts = fetched
        try:
            # On a thread, so that others have their turn while many rows are read.
            return await asyncio.to_thread(open_snapshot, snapshot, parts, execution_id=execution_id, rules=self._rules)
        except Corrupt as exc:
            self._metrics.refused_snapshots.labels("corrupt").inc()
            logger.warning(
                "replay.snapshot_refused",
                execution_id=str(execution_id),
                position=snapshot.position,
                reason=exc.message,
            )
            return None
