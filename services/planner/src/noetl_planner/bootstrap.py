"""Wires a planner: which adapter stands behind which port, and which loops run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime

import grpc
from noetl_adapters.nats.connection import NatsConnection
from noetl_adapters.nats.consumers import ConsumerSpec
from noetl_adapters.nats.publisher import NatsPublisher
from noetl_adapters.nats.pull_consumer import NatsPullConsumer
from noetl_adapters.payload.open_store import open_payload_store
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import (
    IDEMPOTENT_METHODS,
    CatalogClient,
    EventLogClient,
    RoutingSnapshotClient,
    ShardClient,
)
from noetl_contracts.subjects import EVENTS_STREAM, shard_filter, token, work_subject
from noetl_core.append import Fence, Hint
from noetl_core.errors import NotOwner
from noetl_core.ports.payloads import PayloadStore
from noetl_core.routing_snapshots import rules_digest
from noetl_servicekit.bus_reports import log_bus_report
from noetl_servicekit.code_version import code_version
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.shard_ownership import ShardMetrics, ShardOwnership
from noetl_servicekit.tokens import Tokens
from noetl_servicekit.tracing import current_traceparent
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.gated_reads import GatedReads
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.owners import Owners
from noetl_planner.application.routing_snapshots import KeepRouting
from noetl_planner.application.turn_parts import TurnRules
from noetl_planner.application.waiting_workers import WaitingWorkers
from noetl_planner.application.wake_workers import WakeWorkers
from noetl_planner.entrypoints import command_service, frame_service
from noetl_planner.entrypoints.event_consumer import consume_events
from noetl_planner.entrypoints.head_sweep import HeadSweep, repeat_hints, sweep_heads
from noetl_planner.settings import Settings
from noetl_planner.telemetry import PlannerMetrics

ActorFactory = Callable[[int, int], Actor]

ROLE = "planner"


class Planner:
    """One planner process; parts are made here and started in `start`."""

    def __init__(self, group: ServiceGroup, settings: Settings, environment: Mapping[str, str]) -> None:
        self._group = group
        self._settings = settings
        self._environment = environment
        self._metrics = PlannerMetrics(group.metrics)
        self._waiting = WaitingWorkers(lease_seconds=settings.command_lease_seconds)
        self._gained = asyncio.Event()
        self._dropping: set[asyncio.Task[None]] = set()
        self._ownership: ShardOwnership | None = None
        self._sweep: HeadSweep | None = None

    async def start(self) -> None:
        """Start everything, the operator's port first."""
        group, settings = self._group, self._settings
        ops = await group.serve_ops(settings.ops_listen, extra_routes=[Route("/summary", self._summary)])
        channel = await group.enter(
            open_channel(
                settings.api_address,
                token=settings.token,
                traceparent=current_traceparent,
                retryable_methods=IDEMPOTENT_METHODS,
            )
        )
        bus = NatsConnection(
            settings.nats_url, name=group.settings.instance, token=settings.nats_token or None, report=log_bus_report
        )
        group.loop("nats-connection", bus.run)
        payloads = await group.enter(open_payload_store(settings.payload_url, self._environment))
        log, leases = EventLogClient(channel), ShardClient(channel)
        publisher = NatsPublisher(bus)
        wake_workers = WakeWorkers(publisher)
        group.on_stop(wake_workers.close)
        owners = Owners(leases)
        self.actors = Actors(
            shard_count=settings.ownership.shard_count,
            owns=lambda shard: self._epoch(shard) is not None,
            owner_address=owners.address,
            make_actor=self._actor_factory(log, channel, payloads, on_hints=wake_workers),
            metrics=self._metrics,
            waiting=self._waiting,
        )
        group.on_stop(self.actors.stop)
        group.health.check("turns", self.actors.stuck)
        address = await group.serve_grpc(
            settings.grpc_listen,
            register=self._register,
            service_names=(command_service.SERVICE_NAME, frame_service.SERVICE_NAME),
            tokens=Tokens(settings.tokens_file),
        )
        ownership = self._ownership = ShardOwnership(
            leases,
            settings.ownership,
            role=ROLE,
            instance=group.settings.instance,
            address=settings.advertised_address or str(address),
            metrics=ShardMetrics(group.metrics),
            on_gained=lambda gained: self._shards_changed(),
            on_lost=self._shards_lost,
        )
        self._consumer = NatsPullConsumer(
            bus,
            ConsumerSpec(
                stream=EVENTS_STREAM,
                durable=token(f"{ROLE}-{group.settings.instance}"),
                subjects=(),
                max_ack_pending=5_000,
                inactive_seconds=3_600.0,
            ),
        )
        group.on_stop(self._consumer.close)
        group.on_stop(ownership.release)
        sweep = self._sweep = HeadSweep(log, self.actors, owned=ownership.epochs)
        group.loop("ownership", ownership.run)
        group.loop(
            "owners", lambda beat: owners.keep_current(every_seconds=settings.ownership.heartbeat_seconds, beat=beat)
        )
        group.loop(
            "events",
            lambda beat: consume_events(
                self._consumer, self.actors, self._metrics, log_branch=lambda: ownership.log_branch, beat=beat
            ),
        )
        group.loop(
            "heads",
            lambda beat: sweep_heads(sweep, every_seconds=settings.head_poll_seconds, gained=self._gained, beat=beat),
        )
        group.loop(
            "hints",
            lambda beat: repeat_hints(
                self.actors, publisher, self._metrics, every_seconds=settings.rehint_seconds, beat=beat
            ),
        )
        group.on_stop(self._send_waiting_workers_away)  # first of all: the server waits for calls under way
        group.ready(grpc=address, ops=ops)

    def _actor_factory(
        self,
        log: EventLogClient,
        channel: grpc.aio.Channel,
        payloads: PayloadStore,
        *,
        on_hints: Callable[[Sequence[Hint]], None],
    ) -> ActorFactory:
        settings = self._settings
        load_plan = LoadPlan(
            PinnedPlaybooks(CatalogClient(channel)),
            payloads,
            max_attempts=settings.command_max_attempts,
        )
        rules = TurnRules(
            lease_seconds=settings.command_lease_seconds,
            now=lambda: datetime.now(UTC),
            work_subject=lambda pool, kind: work_subject(pool=pool, kind=kind),
            waiting=self._waiting,
        )
        producer = f"urn:noetl:planner:{self._group.settings.instance}"
        gated = GatedReads(log)
        routing = KeepRouting(
            RoutingSnapshotClient(channel),
            rules=rules_digest(code_version()),
            every_events=settings.routing_snapshot_events,
            fence=self._fence,
            metrics=self._metrics,
        )
        self._group.on_stop(routing.close)

        def make(execution_id: int, shard: int) -> Actor:
            return Actor(
                execution_id,
                shard=shard,
                log=gated,
                load_plan=load_plan,
                rules=rules,
                fence=self._fence,
                producer=producer,
                metrics=self._metrics,
                on_fenced=self._fenced,
                on_hints=on_hints,
                routing=routing,
            )

        return make

    def _register(self, server: grpc.aio.Server) -> None:
        command_service.register(server, self.actors)
        frame_service.register(server, self.actors, self.actors)

    def _epoch(self, shard: int) -> int | None:
        return self._ownership.epoch(shard) if self._ownership is not None else None

    def _fence(self, shard: int) -> Fence:
        epoch = self._epoch(shard)
        if epoch is None:
            raise NotOwner(shard=shard, address=None)
        return Fence(role=ROLE, shard=shard, epoch=epoch)

    def _fenced(self, shard: int) -> None:
        if self._ownership is not None:
            self._ownership.fenced(shard)

    async def _send_waiting_workers_away(self) -> None:
        self._waiting.close()

    def _shards_lost(self, lost: frozenset[int]) -> None:
        if self._sweep is not None:
            self._sweep.forget(lost)
        self._start(self.actors.drop_shards(lost))
        self._shards_changed()

    def _shards_changed(self) -> None:
        self._gained.set()
        if self._ownership is not None:
            self._start(
                self._consumer.set_subjects([shard_filter(shard) for shard in sorted(self._ownership.epochs())])
            )

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _summary(self, request: Request) -> Response:
        shards = sorted(self._ownership.epochs()) if self._ownership else []
        return JSONResponse({"shards": shards, "quarantined": self.actors.quarantined()})


async def start(group: ServiceGroup, values: Mapping[str, str] | None = None) -> None:
    """What `run_service` calls."""
    environment = os.environ if values is None else values
    await Planner(group, Settings.from_env(environment), environment).start()
