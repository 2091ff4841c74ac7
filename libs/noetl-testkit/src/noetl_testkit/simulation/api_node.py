"""The wiring of api, as its bootstrap does it, over a simulated database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from noetl_api.application.append_events import AppendEvents
from noetl_api.application.cancel_execution import CancelExecution
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.group_commit import GroupCommit, Outcome
from noetl_api.application.notice_starts import NoticeStarts
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.application.routing import Routing
from noetl_api.application.start_execution import Started, StartExecution, StartRequest
from noetl_api.application.steer_execution import SteerExecution
from noetl_core.append import Ahead, Appended, AppendRequest, Fence, PreparedRequest
from noetl_core.children.state import StartingCall
from noetl_core.errors import NoetlError, Overtaken
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionView
from noetl_core.ports.steering import SteerAction, Steered
from noetl_core.routing_snapshots import RoutingSnapshot

from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.simulation.clients import PlannerRoute
from noetl_testkit.simulation.network import Node
from noetl_testkit.simulation.nodes import (
    SCOPE,
    SERVICE,
    SHARDS,
    SOMEBODY,
    Installation,
    KnownParsed,
    metrics,
)


class ForeseeingDatabase:
    """What the adapter does before it writes: it tells what memory is sure of, and has it written so or not at all.

    Memory is the log itself here. What happens between the word and the commit is for the network to think of.
    """

    def __init__(self, database: Any, log: InMemoryEventLog, now: Callable[[], datetime]) -> None:
        self.read = database.read
        self.moved_heads = database.moved_heads
        self._database = database
        self._log = log
        self._now = now

    async def commit(self, requests: Sequence[PreparedRequest], *, ahead: Ahead | None = None) -> list[Outcome]:
        """One transaction."""
        at = self._now()
        foreseen = None if ahead is None else self._log.foreseen(requests[0], at=at)
        if ahead is None or foreseen is None:
            committed: list[Outcome] = await self._database.commit(requests)
            return committed
        ahead(foreseen)
        (outcome,) = await self._database.commit(requests, at=at)
        if isinstance(outcome, NoetlError) or [one.event for one in outcome] != [one.event for one in foreseen]:
            return [Overtaken("another one was first")]
        return [foreseen]  # perhaps the answer to the second of two calls, which found what the first had written


class ApiPorts:
    """What api serves: the log to services, executions to workers, and everything to users."""

    def __init__(self, place: Installation) -> None:
        database, signal, told = place.database("log"), CommitSignal(), metrics().api
        planners = PlannerRoute(place.network, place.planners, shard_count=SHARDS)
        foreseeing = ForeseeingDatabase(database, place.log, place.now)
        self._log = GroupCommit(foreseeing, prepare=place.log.prepare, signal=signal, metrics=told.append)
        self._append = AppendEvents(self._log)
        self.read = place.log.read
        self.moved_heads = place.log.moved_heads
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
            append_ahead=self._log.append_ahead,
        )
        self._cancel = CancelExecution(self._log, database)
        self._steer = SteerExecution(self._log, database, planners)
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
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        reason: str = "",
        cascade: bool = True,
        fence: Fence | None = None,
    ) -> object:
        """For users, and for the reaper."""
        cancel = self._cancel.under(SERVICE, fence)
        return await cancel(SERVICE, scope, execution_id, reason=reason, cascade=cascade)

    async def steer(self, execution_id: int, action: SteerAction) -> Steered:
        """For users."""
        return await self._steer(SOMEBODY, SCOPE, execution_id, action)


class RoutingPort:
    """What planners leave for each other."""

    def __init__(self, place: Installation) -> None:
        self._routing = Routing(place.database("routing"))

    async def find(self, execution_id: int) -> RoutingSnapshot | None:
        """For planners."""
        return await self._routing.find(SERVICE, execution_id)

    async def keep(self, snapshot: RoutingSnapshot, *, fence: Fence) -> bool:
        """For planners."""
        return await self._routing.keep(SERVICE, snapshot, fence=fence)


async def start_api(place: Installation, node: Node) -> None:
    """All that api does it does when somebody asks."""
    node.ports["api"] = ApiPorts(place)
    node.ports["leases"] = place.leases
    node.ports["routing"] = RoutingPort(place)
