"""The wiring of api, planner, projector and reaper, as their bootstraps do it, over simulated neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from noetl_api.application.append_events import AppendEvents
from noetl_api.application.cancel_execution import CancelExecution
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit
from noetl_api.application.notice_starts import NoticeStarts
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.application.start_execution import Started, StartExecution, StartRequest
from noetl_api.application.steer_execution import SteerExecution
from noetl_contracts.subjects import shard_filter, work_subject
from noetl_core.append import Appended, AppendRequest, Fence
from noetl_core.children.state import StartingCall
from noetl_core.errors import NotOwner
from noetl_core.ports.deadlines import LatePage
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionView, SilentPage
from noetl_core.ports.steering import SteerAction, Steered
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.owners import Owners
from noetl_planner.application.turn_parts import TurnRules
from noetl_planner.application.wake_workers import WakeWorkers
from noetl_planner.entrypoints.event_consumer import consume_events
from noetl_planner.entrypoints.head_sweep import HeadSweep, repeat_hints, sweep_heads
from noetl_projector.application.answer_queries import AnswerQueries
from noetl_projector.application.checkpoints import Checkpoints
from noetl_projector.application.compare_heads import CompareHeads
from noetl_projector.application.known_states import KnownStates
from noetl_projector.application.project_batch import ProjectBatch
from noetl_projector.application.read_missing import ReadMissing
from noetl_projector.application.store_rows import StoreRows
from noetl_projector.application.troubles import Troubles
from noetl_projector.application.version_signals import VersionSignals
from noetl_projector.entrypoints.head_comparison import compare_regularly
from noetl_projector.entrypoints.shard_consumer import ShardConsumer
from noetl_reaper.application.pass_deadlines import PassDeadlines
from noetl_reaper.application.reclaim_commands import ReclaimCommands
from noetl_reaper.entrypoints.sweep_loop import sweep_regularly
from noetl_servicekit.shard_ownership import ShardOwnership

from noetl_testkit.simulation.clients import PlannerRoute
from noetl_testkit.simulation.network import Node
from noetl_testkit.simulation.nodes import (
    CHECKPOINT_SECONDS,
    DEADLINE_SECONDS,
    HEAD_POLL_SECONDS,
    LEASE_SECONDS,
    MAX_ATTEMPTS,
    OWNERSHIP,
    REAP_SECONDS,
    REHINT_SECONDS,
    SCOPE,
    SERVICE,
    SHARDS,
    SOMEBODY,
    Installation,
    KnownParsed,
    KnownPlaybooks,
    metrics,
)


class ApiPorts:
    """What api serves: the log to services, executions to workers, and everything to users."""

    def __init__(self, place: Installation, node: Node) -> None:
        database, signal, told = place.database("log"), CommitSignal(), metrics().api
        planners = PlannerRoute(place.network, place.planners, shard_count=SHARDS)
        self._log = GroupCommit(database, prepare=place.log.prepare, signal=signal, metrics=told.append)
        self._append = AppendEvents(self._log)
        self.read = self._log.read
        self.moved_heads = self._log.moved_heads
        self._start = StartExecution(
            log=self._log,
            catalog=place.catalog,
            parsed=KnownParsed(),
            payloads=place.database("payloads"),
            next_id=place.log.next_id,
            clock=place.now,
            playbook_env={},
            metrics=told,
            on_started=NoticeStarts(planners),
        )
        self._cancel = CancelExecution(self._log, database)
        self._steer = SteerExecution(self._log, planners)
        self._query = QueryExecutions(
            projections=place.network.remote(place.projectors[0], "projections"),
            log=self._log,
            signal=signal,
            metrics=told,
            clock=place.loop.time,
        )

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        """For services."""
        return await self._append(SERVICE, request)

    async def execute(
        self,
        scope: Scope | None,
        *,
        path: str = "",
        version: int = 0,
        payload: Mapping[str, Any] | None = None,
        parent_execution_id: int | None = None,
        parent_call: StartingCall | None = None,
    ) -> Started:
        """For workers: a child."""
        request = StartRequest(
            path=path,
            version=version,
            payload=payload or {},
            parent_execution_id=parent_execution_id,
            parent_call=parent_call,
        )
        return await self._start(SERVICE, scope, request)

    async def get(self, scope: Scope | None, execution_id: int, *, min_version: int = 0) -> ExecutionView:
        """For workers: how a child ended."""
        return await self._query.get(SERVICE, scope, execution_id, min_version=min_version)

    async def begin(self, path: str, key: str, payload: Mapping[str, Any]) -> Started:
        """For users."""
        return await self._start(SOMEBODY, SCOPE, StartRequest(path=path, start_key=key, payload=payload))

    async def cancel(
        self, scope: Scope | None, execution_id: int, *, reason: str = "", cascade: bool = True
    ) -> object:
        """For users, and for the reaper."""
        return await self._cancel(SERVICE, scope, execution_id, reason=reason, cascade=cascade)

    async def steer(self, execution_id: int, action: SteerAction) -> Steered:
        """For users."""
        return await self._steer(SOMEBODY, SCOPE, execution_id, action)


async def start_api(place: Installation, node: Node) -> None:
    """All that api does it does when somebody asks."""
    node.ports["api"] = ApiPorts(place, node)
    node.ports["leases"] = place.database("leases")


class PlannerNode:
    """As the planner's bootstrap wires it."""

    def __init__(self, place: Installation, node: Node) -> None:
        self._place = place
        self._node = node
        self._gained = asyncio.Event()
        self._log = place.api("api", by=node)
        leases = place.api("leases", by=node)
        self._wake = WakeWorkers(place.bus)
        self._owners = Owners(leases)
        self._load_plan = LoadPlan(
            KnownPlaybooks(place.catalog), place.database("payloads"), max_attempts=MAX_ATTEMPTS
        )
        self._rules = TurnRules(
            lease_seconds=LEASE_SECONDS,
            now=place.now,
            work_subject=lambda pool, kind: work_subject(pool=pool, kind=kind),
        )
        self.actors = Actors(
            shard_count=SHARDS,
            owns=lambda shard: self.ownership.epoch(shard) is not None,
            owner_address=self._owners.address,
            make_actor=self._actor,
            metrics=metrics().planner,
        )
        self.ownership = ShardOwnership(
            leases,
            OWNERSHIP,
            role="planner",
            instance=node.name,
            address=node.name,
            metrics=metrics().shards,
            on_gained=lambda gained: self._changed(),
            on_lost=self._lost,
            incarnation=f"{node.name}/{node.incarnations}",
            clock=place.loop.time,
        )
        self._consumer = place.bus.consumer(node.name, ())
        self._sweep = HeadSweep(self._log, self.actors, owned=self.ownership.epochs)

    def _actor(self, execution_id: int, shard: int) -> Actor:
        return Actor(
            execution_id,
            shard=shard,
            log=self._log,
            load_plan=self._load_plan,
            rules=self._rules,
            fence=self._fence,
            producer=f"urn:noetl:planner:{self._node.name}",
            metrics=metrics().planner,
            on_fenced=self.ownership.fenced,
            on_hints=self._wake,
        )

    def _fence(self, shard: int) -> Fence:
        epoch = self.ownership.epoch(shard)
        if epoch is None:
            raise NotOwner(shard=shard, address=None)
        return Fence(role="planner", shard=shard, epoch=epoch)

    def _lost(self, lost: frozenset[int]) -> None:
        self._sweep.forget(lost)
        self._place.loop.create_task(self.actors.drop_shards(lost))
        self._changed()

    def _changed(self) -> None:
        self._gained.set()
        subjects = [shard_filter(shard) for shard in sorted(self.ownership.epochs())]
        self._place.loop.create_task(self._consumer.set_subjects(subjects))

    def wipe(self) -> None:
        """Forget every execution, as if each had been let go of; the sweep has to find them again."""
        held = frozenset(self.ownership.epochs())
        self._sweep.forget(held)
        self._place.loop.create_task(self.actors.drop_shards(held))
        self._gained.set()

    async def run(self) -> None:
        """Everything that runs by itself."""
        actors, told = self.actors, metrics().planner
        await self._place.supervise(
            ownership=self.ownership.run,
            owners=lambda beat: self._owners.keep_current(every_seconds=OWNERSHIP.heartbeat_seconds, beat=beat),
            events=lambda beat: consume_events(self._consumer, actors, told, beat=beat),
            heads=lambda beat: sweep_heads(
                self._sweep, every_seconds=HEAD_POLL_SECONDS, gained=self._gained, beat=beat
            ),
            hints=lambda beat: repeat_hints(actors, self._place.bus, told, every_seconds=REHINT_SECONDS, beat=beat),
        )


async def start_planner(place: Installation, node: Node) -> None:
    """One planner."""
    planner = PlannerNode(place, node)
    node.ports["planner"] = planner.actors
    node.wipe = planner.wipe
    await planner.run()


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
            store,
            signals=signals,
            troubles=self._troubles,
            shard_count=SHARDS,
            owns=lambda shard: epoch(shard) is not None,
            clock=place.loop.time,
        )
        self._checkpoints = Checkpoints(store, told)
        rows = StoreRows(
            store,
            epoch=epoch,
            fenced=self.ownership.fenced,
            known=self._known,
            signals=signals,
            checkpoints=self._checkpoints,
            metrics=told,
        )
        self._project = ProjectBatch(
            store,
            ReadMissing(log, told),
            rows,
            owns=lambda shard: epoch(shard) is not None,
            known=self._known,
            troubles=self._troubles,
            metrics=told,
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
            self._pull, self._project, batch_size=100, shard_count=SHARDS, metrics=told, on_bus_away=self._hurry.set
        )

    def _lost(self, lost: frozenset[int]) -> None:
        self._known.forget_shards(lost)
        self._troubles.forget_shards(lost)
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
        return await self.queries.get_execution(
            scope, execution_id, min_version=min_version, wait_seconds=wait_seconds
        )

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
            checkpoints=lambda beat: self._checkpoints.keep(every_seconds=CHECKPOINT_SECONDS, beat=beat),
        )


async def start_projector(place: Installation, node: Node) -> None:
    """One projector."""
    projector = ProjectorNode(place, node)
    node.ports["projections"] = projector
    node.wipe = projector.wipe
    await projector.run()


async def start_reaper(place: Installation, node: Node) -> None:
    """One reaper."""
    projector = place.projectors[node.incarnations % len(place.projectors)]
    projections = place.network.remote(projector, "projections")
    planners: Any = PlannerRoute(place.network, place.planners, shard_count=SHARDS)
    leases, told = place.api("leases", by=node), metrics().reaper
    reclaim = ReclaimCommands(projections, planners, reclaimer="urn:noetl:reaper:sim", concurrency=8, metrics=told)
    deadlines = PassDeadlines(
        projections,
        planners,
        place.api("api", by=node),
        concurrency=8,
        metrics=told,
        clock=place.loop.time,
    )
    await place.supervise(
        sweep=lambda beat: sweep_regularly(
            reclaim, leases, shard_count=SHARDS, every_seconds=REAP_SECONDS, beat=beat
        ),
        deadlines=lambda beat: sweep_regularly(
            deadlines, leases, shard_count=SHARDS, every_seconds=DEADLINE_SECONDS, beat=beat
        ),
    )
