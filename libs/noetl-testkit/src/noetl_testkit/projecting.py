"""A projector over in-memory twins, without its loops: for tests of what reaches the rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from noetl_contracts.subjects import shard_filter
from noetl_core.envelope import StoredEvent
from noetl_core.ports.projections import ExecutionView
from noetl_core.replay.snapshots import Rules
from noetl_core.sharding import shard_of
from noetl_core.surfaces.shapes import Surface
from noetl_core.upcasting.registry import Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_projector.application.advance import Wanted
from noetl_projector.application.barriers import Barriers
from noetl_projector.application.checkpoints import Checkpoints
from noetl_projector.application.compare_heads import CompareHeads
from noetl_projector.application.keep_snapshots import KeepSnapshots
from noetl_projector.application.known_states import KnownStates
from noetl_projector.application.project_batch import ProjectBatch
from noetl_projector.application.read_missing import ReadMissing
from noetl_projector.application.remake_rows import RemakeRows
from noetl_projector.application.store_rows import StoreRows
from noetl_projector.application.troubles import Troubles
from noetl_projector.application.version_signals import VersionSignals
from noetl_projector.entrypoints.shard_consumer import ShardConsumer
from noetl_projector.telemetry import ProjectorMetrics
from noetl_servicekit.metrics import MetricSet

from noetl_testkit.compliance.projections import projected
from noetl_testkit.histories import EXECUTION, NOON, History
from noetl_testkit.memory.bus import InMemoryBus
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.memory.snapshots import InMemorySnapshots

BEFORE: Final = NOON - timedelta(days=1)
AFTERWARDS: Final = NOON + timedelta(days=1)
"""When a process began: all of the events are of its time, or of the time before it."""


class Process:
    """A projector without its loops; a second one over the same log and store is what comes after a crash."""

    def __init__(
        self,
        log: HistoryLog,
        store: InMemoryProjections,
        *,
        epoch: int = 1,
        capacity: int = 100,
        began_at: datetime = AFTERWARDS,
        upcasters: Upcasters = UPCASTERS,
    ) -> None:
        self.log, self.store = log, store
        self.epochs: dict[int, int] = dict.fromkeys(range(64), epoch)
        self.metrics = MetricSet()
        self.known = KnownStates(capacity)
        self.troubles = Troubles()
        self.signals = VersionSignals()
        self.counts = counts = ProjectorMetrics(self.metrics)
        self.checkpoints = Checkpoints(store, counts)
        self.barriers = Barriers(store, log, epoch=self.epochs.get, fenced=self.lose, metrics=counts, events_between=10)
        store_rows = StoreRows(
            store,
            epoch=self.epochs.get,
            fenced=self.lose,
            known=self.known,
            told=self.signals,
            checkpoints=self.checkpoints,
            barriers=self.barriers,
            snapshots=KeepSnapshots(
                log,
                InMemorySnapshots(),
                Rules(code_version="test"),
                owns=lambda shard: shard in self.epochs,
                metrics=counts,
                interval=1_000,
            ),
            metrics=counts,
        )
        self.now = 0.0
        self.log_branch = ""
        self.remakes = RemakeRows(
            store,
            log,
            store_rows,
            troubles=self.troubles,
            metrics=counts,
            upcasters=upcasters,
            clock=lambda: self.now,
        )
        self.project = ProjectBatch(
            store,
            ReadMissing(log, store, counts),
            store_rows,
            self.remakes,
            owns=lambda shard: shard in self.epochs,
            known=self.known,
            troubles=self.troubles,
            metrics=counts,
            began_at=began_at,
            log_branch=lambda: self.log_branch,
            upcasters=upcasters,
        )
        self.compare = CompareHeads(
            log,
            store,
            self.project,
            owned=lambda: self.epochs,
            known=self.known,
            troubles=self.troubles,
            checkpoints=self.checkpoints,
        )
        self.bus = InMemoryBus()
        self.pull = self.bus.consumer(*(shard_filter(shard) for shard in range(64)))
        self.consumer = ShardConsumer(self.pull, self.project, batch_size=500, shard_count=64, metrics=counts)

    def lose(self, shard: int) -> None:
        """Its lease has passed on."""
        self.epochs.pop(shard, None)
        self.known.forget_shards({shard})
        self.troubles.forget_shards({shard})
        self.remakes.forget_shards({shard})
        self.project.forget_shards({shard})
        self.compare.forget_shards({shard})

    async def take(self, *events: StoredEvent, execution_id: int = EXECUTION) -> None:
        """Project events of one execution as one batch."""
        shard = shard_of(execution_id, 64)
        await self.project([Wanted(execution_id=execution_id, shard=shard, events=events)])

    async def remake(self) -> None:
        """What waits to be made again and may be tried now."""
        for is_long in (False, True):
            await self.remakes.make_due(is_long=is_long)

    def version(self, execution_id: int = EXECUTION) -> int:
        """Of the stored row; 0 if there is none."""
        row = self.store.executions.get(execution_id)
        return row.view.stream_version if row is not None else 0

    def count(self, name: str) -> float:
        """What a counter of the projector has come to."""
        return self.metrics.total(f"noetl_projector_{name}_total")


Rows = tuple[dict[int, ExecutionView], dict[Surface, dict[tuple[int, str], bytes]]]


def rows_of(store: InMemoryProjections) -> Rows:
    """All that is stored."""
    return (
        {key: row.view for key, row in store.executions.items()},
        {surface: dict(rows) for surface, rows in store.rows.items()},
    )


async def straight(histories: Iterable[History]) -> Rows:
    """The rows that one fold of everything gives."""
    store = InMemoryProjections()
    for history in histories:
        await store.write([projected(history)])
    return rows_of(store)
