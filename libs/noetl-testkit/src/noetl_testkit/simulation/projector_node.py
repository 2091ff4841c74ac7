"""The wiring of a projector, as its bootstrap does it, over simulated neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from noetl_contracts.subjects import shard_filter
from noetl_core.ports.deadlines import LatePage
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionView, SilentPage
from noetl_core.replay.snapshots import Rules
from noetl_projector.application.answer_queries import AnswerQueries
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
from noetl_projector.entrypoints.checkpointing import checkpoint_regularly
from noetl_projector.entrypoints.head_comparison import compare_regularly
from noetl_projector.entrypoints.shard_consumer import ShardConsumer
from noetl_servicekit.shard_ownership import ShardOwnership

from noetl_testkit.memory.snapshots import InMemorySnapshots
from noetl_testkit.simulation.network import Node
from noetl_testkit.simulation.nodes import (
    CHECKPOINT_SECONDS,
    HEAD_POLL_SECONDS,
    OWNERSHIP,
    SHARDS,
    Installation,
    metrics,
)

EVENTS_BETWEEN_CHECKPOINTS: Final = 30
"""Few, so that histories as short as those here have checkpoints among what others decide."""

SNAPSHOT_INTERVAL: Final = 40


class ProjectorNode:
    """As the projector's bootstrap wires it."""

    def __init__(self, place: Installation, node: Node) -> None:
        self._place = place
        log, leases, store = place.api("api", by=node), place.api("leases", by=node), place.database("projections")
        told = metrics().projector
        self._known, self._troubles, self._hurry = KnownStates(100), Troubles(), asyncio.Event()
        signals = VersionSignals()
        self.ownership = ShardOwnership(
            leases,
            OWNERSHIP,
            role="projector",
            instance=node.name,
            address=node.name,
            metrics=metrics().shards,
            on_gained=lambda gained: self._changed(),
            on_lost=self._lost,
            incarnation=f"{node.name}/{node.incarnations}",
            clock=place.loop.time,
        )
        epoch = self.ownership.epoch
        self.queries = AnswerQueries(
            place.projections,
            signals=signals,
            troubles=self._troubles,
            shard_count=SHARDS,
            owns=lambda shard: epoch(shard) is not None,
            clock=place.loop.time,
        )
        self._checkpoints = Checkpoints(store, told)
        self._barriers = Barriers(
            store,
            log,
            epoch=epoch,
            fenced=self.ownership.fenced,
            metrics=told,
            events_between=EVENTS_BETWEEN_CHECKPOINTS,
        )
        self._snapshots = KeepSnapshots(
            log,
            InMemorySnapshots(),
            Rules(code_version="simulated"),
            owns=lambda shard: epoch(shard) is not None,
            metrics=told,
            interval=SNAPSHOT_INTERVAL,
            aside=_at_once,
        )
        rows = StoreRows(
            store,
            epoch=epoch,
            fenced=self.ownership.fenced,
            known=self._known,
            told=signals,
            checkpoints=self._checkpoints,
            barriers=self._barriers,
            snapshots=self._snapshots,
            metrics=told,
        )
        # Nobody runs it: all projectors here are of one release, and nothing is ever to be made again.
        self._remakes = RemakeRows(store, log, rows, troubles=self._troubles, metrics=told, clock=place.loop.time)
        self._project = ProjectBatch(
            store,
            ReadMissing(log, store, told),
            rows,
            self._remakes,
            owns=lambda shard: epoch(shard) is not None,
            known=self._known,
            troubles=self._troubles,
            metrics=told,
            began_at=datetime.min.replace(tzinfo=UTC),  # rows that are not looked for first are what may go wrong
        )
        self._compare = CompareHeads(
            log,
            store,
            self._project,
            owned=self.ownership.epochs,
            known=self._known,
            troubles=self._troubles,
            checkpoints=self._checkpoints,
        )
        self._pull = place.bus.consumer(node.name, ())
        self._consumer = ShardConsumer(
            self._pull,
            self._project,
            batch_size=100,
            shard_count=SHARDS,
            metrics=told,
            log_branch=lambda: self.ownership.log_branch,
            on_bus_away=self._hurry.set,
        )

    def _lost(self, lost: frozenset[int]) -> None:
        self._known.forget_shards(lost)
        self._troubles.forget_shards(lost)
        self._remakes.forget_shards(lost)
        self._compare.forget_shards(lost)
        self._changed()

    def _changed(self) -> None:
        self._hurry.set()
        subjects = [shard_filter(shard) for shard in sorted(self.ownership.epochs())]
        self._place.loop.create_task(self._pull.set_subjects(subjects))

    def wipe(self) -> None:
        """Forget every state that is kept for speed."""
        self._known.forget_shards(range(SHARDS))

    async def silent_commands(self, *, limit: int, page_token: str = "") -> SilentPage:
        """One page is enough here."""
        return SilentPage(commands=await self.queries.silent_commands(limit=limit))

    async def passed_deadlines(self, *, limit: int, page_token: str = "") -> LatePage:
        """One page is enough here."""
        return LatePage(executions=await self.queries.passed_deadlines(limit=limit))

    async def get_execution(
        self, scope: Scope | None, execution_id: int, *, min_version: int = 0, wait_seconds: float = 0.0
    ) -> ExecutionView:
        """One row."""
        return await self.queries.get_execution(scope, execution_id, min_version=min_version, wait_seconds=wait_seconds)

    async def run(self) -> None:
        """Everything that runs by itself."""
        await self._place.supervise(
            ownership=self.ownership.run,
            events=self._consumer.run,
            heads=lambda beat: compare_regularly(
                self._compare,
                every_seconds=HEAD_POLL_SECONDS,
                away_every_seconds=1.0,
                bus_is_away=lambda: self._consumer.bus_is_away,
                hurry=self._hurry,
                beat=beat,
                clock=self._place.loop.time,
            ),
            snapshots=self._snapshots.run,
            checkpoints=lambda beat: checkpoint_regularly(
                self._checkpoints, self._barriers, every_seconds=CHECKPOINT_SECONDS, beat=beat
            ),
        )


async def _at_once(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """There are no threads in a simulation."""
    return function(*arguments, **named)


async def start_projector(place: Installation, node: Node) -> None:
    """One projector."""
    projector = ProjectorNode(place, node)
    node.ports["projections"] = projector
    node.wipe = projector.wipe
    await projector.run()
