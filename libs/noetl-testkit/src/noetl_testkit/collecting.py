"""A collector over in-memory twins, with a clock that tests turn and a writer that gets in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from noetl_api.application.collect_payloads import CollectPayloads
from noetl_api.telemetry import CollectionMetrics
from noetl_core.append import AppendRequest, Fence, StreamAppend, StreamStart
from noetl_core.collection.report import CollectionReport
from noetl_core.envelope import Draft
from noetl_core.payloads import PayloadRef
from noetl_core.ports.event_log import Scope
from noetl_core.ports.payloads import CollectablePayloads
from noetl_servicekit.callers import ANY, Caller, Role
from noetl_servicekit.metrics import MetricSet

from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.reachability import InMemoryLogScan

GRACE = timedelta(hours=2)
ORGANIZATION = Scope(tenant_id="acme", organization_id="ops")
ADMIN = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.ADMIN)
SERVICE = Caller(name="reaper", tenant_id=ANY, organization_id=ANY, role=Role.SERVICE)
JSON = "application/json"

Between = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Nobody gets in between."""


class TurnedClock:
    """The real time, as a test has turned it: stores have clocks of their own, which run with the real one."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


class Interrupted:
    """Somebody gets in before every call."""

    def __init__(self, behind: Any, between: Callable[[], Awaitable[None]]) -> None:
        self._behind = behind
        self._between = between

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._behind, name)

        async def interrupted(*arguments: Any, **named: Any) -> Any:
            await self._between()
            return await call(*arguments, **named)

        async def interrupted_stream(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
            await self._between()
            async for one in call(*arguments, **named):
                yield one

        is_stream = name in {"find", "find_withdrawn", "stream", "events", "playbooks"}
        return interrupted_stream if is_stream else interrupted


class Collecting:
    """One log, one store, any number of collectors."""

    def __init__(self, payloads: CollectablePayloads | None = None, *, clock: TurnedClock | None = None) -> None:
        self.clock = clock or TurnedClock()
        self.log = InMemoryEventLog(clock=self.clock)
        self.leases = InMemoryShardLeases(shard_count=64, clock=self.clock)
        self.payloads = InMemoryPayloadStore(clock=self.clock) if payloads is None else payloads
        self.scan = InMemoryLogScan(self.log, clock=self.clock)
        self.between: Between = nothing
        self.metrics = CollectionMetrics(MetricSet())

    def collector(self, **options: Any) -> CollectPayloads:
        async def between() -> None:
            await self.between()

        settings: dict[str, Any] = {"min_grace_seconds": 3600.0, "field_bits": 14, **options}
        return CollectPayloads(
            log=Interrupted(self.log, between),
            scan=Interrupted(self.scan, between),
            payloads=Interrupted(self.payloads, between),
            leases=self.leases,
            next_id=self.log.next_id,
            metrics=self.metrics,
            grace_seconds=GRACE.total_seconds(),
            **settings,
        )

    async def run(
        self, *, apply: bool = True, caller: Caller = ADMIN, fence: Fence | None = None, **options: Any
    ) -> CollectionReport:
        """One run, to its end."""
        return [report async for report in self.collector(**options)(caller, None, apply=apply, fence=fence)][-1]

    def wait(self, span: timedelta = GRACE) -> None:
        """Time passes."""
        self.clock.ahead += span

    async def put(self, data: bytes = b"bytes", scope: Scope = ORGANIZATION) -> PayloadRef:
        """What a writer does first."""
        return await self.payloads.put(
            tenant_id=scope.tenant_id, organization_id=scope.organization_id, data=data, media_type=JSON
        )

    async def tell(self, ref: PayloadRef) -> int:
        """What it does then: an event that refers to the bytes."""
        execution_id = self.log.next_id()
        await self.log.append(telling(execution_id, ref))
        return execution_id

    async def is_there(self, ref: PayloadRef) -> bool:
        """Whether whoever reads the event finds the bytes."""
        return await self.payloads.exists(ref)

    def told(self) -> list[str]:
        """The types of all events of collections, in their order."""
        events = [event for stream in self.log.streams.values() for event in stream.events]
        types = [event.envelope().event_type for event in sorted(events, key=lambda one: one.ingest_time)]
        return [name for name in types if name.startswith(("payload.", "playbook."))]


def telling(execution_id: int, ref: PayloadRef) -> AppendRequest:
    """A first event that refers to bytes."""
    draft = Draft(event_type="user.fact", idempotency_key="k", payload_ref=ref)
    stream = StreamAppend(execution_id=execution_id, drafts=(draft,), start=StreamStart())
    return AppendRequest(tenant_id=ref.tenant_id, organization_id=ref.organization_id, streams=(stream,))
