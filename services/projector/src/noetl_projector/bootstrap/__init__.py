"""Wires a projector: which adapter stands behind which port, and which loops run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from noetl_adapters.nats.connection import NatsConnection
from noetl_adapters.nats.consumers import ConsumerSpec
from noetl_adapters.nats.pull_consumer import NatsPullConsumer
from noetl_adapters.postgres.pool import PATIENT, open_pool
from noetl_adapters.postgres.projections import PostgresProjections
from noetl_adapters.postgres.snapshots import PostgresSnapshots
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import IDEMPOTENT_METHODS, EventLogClient, ShardClient
from noetl_contracts.subjects import EVENTS_STREAM, shard_filter, token
from noetl_core.errors import Unavailable
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.projection_store import ProjectionStore
from noetl_core.replay.snapshots import Rules
from noetl_servicekit.bus_reports import log_bus_report
from noetl_servicekit.code_version import code_version
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.shard_ownership import ShardMetrics, ShardOwnership
from noetl_servicekit.tracing import current_traceparent

from noetl_projector.application.barriers import ROLE, Barriers
from noetl_projector.application.checkpoints import Checkpoints
from noetl_projector.application.compare_heads import CompareHeads
from noetl_projector.application.keep_snapshots import KeepSnapshots
from noetl_projector.application.known_states import KnownStates
from noetl_projector.application.project_batch import ProjectBatch
from noetl_projector.application.read_missing import ReadMissing
from noetl_projector.application.remake_rows import RemakeRows
from noetl_projector.application.store_rows import StoreRows
from noetl_projector.application.troubles import Troubles
from noetl_projector.bootstrap.queries import start_queries
from noetl_projector.entrypoints.checkpointing import checkpoint_regularly, write_last
from noetl_projector.entrypoints.head_comparison import compare_regularly
from noetl_projector.entrypoints.query_link import ToldRows
from noetl_projector.entrypoints.query_process import QueryProcess, link_of
from noetl_projector.entrypoints.shard_consumer import ShardConsumer
from noetl_projector.entrypoints.summary_http import summary_route
from noetl_projector.settings import Settings
from noetl_projector.telemetry import ProjectorMetrics


class Projector:
    """One projector process; parts are made here and started in `start`."""

    def __init__(self, group: ServiceGroup, settings: Settings, environment: Mapping[str, str]) -> None:
        self._group = group
        self._environment = environment
        self._settings = settings
        self._metrics = ProjectorMetrics(group.metrics)
        self._known = KnownStates(settings.cached_executions)
        self._troubles = Troubles()
        self._told = ToldRows()
        self._hurry = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ownership: ShardOwnership | None = None
        self._consumer: ShardConsumer | None = None

    async def start(self) -> None:
        """Start everything, the operator's port first."""
        group, settings = self._group, self._settings
        summary = summary_route(
            ownership=lambda: self._ownership,
            troubles=self._troubles,
            known=self._known,
            bus_is_away=lambda: self._consumer is None or self._consumer.bus_is_away,
        )
        ops = await group.serve_ops(settings.ops_listen, extra_routes=[summary])
        pool = await group.enter(
            await open_pool(
                settings.postgres_dsn,
                min_size=1,
                max_size=settings.postgres_pool_max,
                application_name=group.settings.instance,
                log_branch=self._log_branch,
            )
        )
        patient = await group.enter(
            await open_pool(
                settings.postgres_dsn,
                min_size=0,
                max_size=2,  # one for each lane
                application_name=group.settings.instance,
                command_timeout=30.0,
                settings=PATIENT,
                log_branch=self._log_branch,
            )
        )
        channel = await group.enter(
            open_channel(
                settings.api_address,
                token=settings.token,
                traceparent=current_traceparent,
                retryable_methods=IDEMPOTENT_METHODS,
            )
        )
        store, log, leases = PostgresProjections(pool), EventLogClient(channel), ShardClient(channel)
        grpc = await self._start_queries().address()
        self._snapshots = KeepSnapshots(
            log,
            PostgresSnapshots(pool),
            Rules(code_version=code_version()),
            owns=self._owns,
            metrics=self._metrics,
            interval=settings.snapshot_interval,
        )
        self._compare = self._make_comparison(log, store, PostgresProjections(patient))
        self._pull = await self._open_consumer()
        self._ownership = ShardOwnership(
            leases,
            settings.ownership,
            role=ROLE,
            instance=group.settings.instance,
            address=settings.advertised_address or str(grpc),
            metrics=ShardMetrics(group.metrics),
            on_gained=lambda gained: self._shards_changed(),
            on_lost=self._shards_lost,
        )
        group.on_stop(self._ownership.release)
        group.on_stop(lambda: write_last(self._checkpoints, self._barriers))  # after the loops, and while it owns
        self._start_loops(self._ownership)
        group.ready(grpc=grpc, ops=ops)

    def _start_queries(self) -> QueryProcess:
        group, settings = self._group, self._settings
        queries = QueryProcess(
            {**self._environment, "NOETL_INSTANCE": group.settings.instance},
            self._told,
            listen=settings.grpc_listen,
            owned=self._owned,
            quarantined=self._troubles.quarantined,
            stop_seconds=group.settings.stop_seconds / 2,
        )
        group.metrics.also(lambda: queries.metrics)
        group.health.check("queries", queries.problem)
        group.loop("query-process", queries.run)
        return queries

    def _make_comparison(self, log: EventLog, store: ProjectionStore, patient: ProjectionStore) -> CompareHeads:
        self._checkpoints = Checkpoints(store, self._metrics)
        self._barriers = Barriers(store, log, epoch=self._epoch, fenced=self._fenced, metrics=self._metrics)
        store_rows = StoreRows(
            store,
            epoch=self._epoch,
            fenced=self._fenced,
            known=self._known,
            told=self._told,
            checkpoints=self._checkpoints,
            barriers=self._barriers,
            snapshots=self._snapshots,
            metrics=self._metrics,
        )
        self._remakes = RemakeRows(patient, log, store_rows, troubles=self._troubles, metrics=self._metrics)
        self._project = ProjectBatch(
            store,
            ReadMissing(log, store, self._metrics),
            store_rows,
            self._remakes,
            owns=self._owns,
            known=self._known,
            troubles=self._troubles,
            metrics=self._metrics,
            began_at=datetime.now(UTC),
            log_branch=self._log_branch,
        )
        return CompareHeads(
            log,
            store,
            self._project,
            owned=self._owned,
            known=self._known,
            troubles=self._troubles,
            checkpoints=self._checkpoints,
        )

    async def _open_consumer(self) -> NatsPullConsumer:
        group, settings = self._group, self._settings
        bus = NatsConnection(
            settings.nats_url, name=group.settings.instance, token=settings.nats_token or None, report=log_bus_report
        )
        group.loop("nats-connection", bus.run)
        self._durable = token(f"{ROLE}-{group.settings.instance}")
        pull = NatsPullConsumer(
            bus,
            ConsumerSpec(
                stream=EVENTS_STREAM,
                durable=self._durable,
                subjects=(),
                max_ack_pending=4 * settings.batch_size,
                inactive_seconds=3_600.0,
            ),
        )
        group.on_stop(pull.close)
        return pull

    def _start_loops(self, ownership: ShardOwnership) -> None:
        group, settings = self._group, self._settings
        consumer = self._consumer = ShardConsumer(
            self._pull,
            self._project,
            batch_size=settings.batch_size,
            shard_count=settings.ownership.shard_count,
            metrics=self._metrics,
            log_branch=self._log_branch,
            on_bus_away=self._hurry.set,
        )
        group.loop("ownership", ownership.run)
        group.loop("events", consumer.run)
        group.loop(
            "heads",
            lambda beat: compare_regularly(
                self._compare,
                every_seconds=settings.head_poll_seconds,
                away_every_seconds=settings.away_poll_seconds,
                bus_is_away=lambda: consumer.bus_is_away,
                hurry=self._hurry,
                beat=beat,
            ),
            max_silence_seconds=30.0 + 3 * settings.head_poll_seconds,
        )
        for name, is_long in (("remakes", False), ("long-remakes", True)):
            group.loop(name, partial(self._remakes.run, is_long=is_long), max_silence_seconds=90.0)
        group.loop("snapshots", self._snapshots.run, max_silence_seconds=60.0)
        group.loop(
            "checkpoints",
            lambda beat: checkpoint_regularly(
                self._checkpoints, self._barriers, every_seconds=settings.checkpoint_seconds, beat=beat
            ),
            max_silence_seconds=30.0 + 3 * settings.checkpoint_seconds,
        )

    def _epoch(self, shard: int) -> int | None:
        return self._ownership.epoch(shard) if self._ownership is not None else None

    def _log_branch(self) -> str:
        return self._ownership.log_branch if self._ownership is not None else ""

    def _owns(self, shard: int) -> bool:
        return self._epoch(shard) is not None

    def _owned(self) -> Mapping[int, int]:
        return self._ownership.epochs() if self._ownership is not None else {}

    def _fenced(self, shard: int) -> None:
        if self._ownership is not None:
            self._ownership.fenced(shard)

    def _shards_lost(self, lost: frozenset[int]) -> None:
        self._known.forget_shards(lost)
        self._troubles.forget_shards(lost)
        self._remakes.forget_shards(lost)
        self._project.forget_shards(lost)
        self._compare.forget_shards(lost)
        self._checkpoints.forget_shards(lost)
        self._metrics.forget_shards(lost)
        self._shards_changed()

    def _shards_changed(self) -> None:
        self._hurry.set()
        self._show_shards()
        if not self._group.stopping.is_set():  # the place in the stream is to be kept for the next process
            task = asyncio.create_task(self._listen_to_owned())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _show_shards(self) -> None:
        shard_count = str(self._settings.ownership.shard_count)
        self._metrics.shards.clear()
        for place, shard in enumerate(sorted(self._owned())):
            where = (self._durable, EVENTS_STREAM, shard_filter(shard))
            self._metrics.shards.labels(str(shard), str(place), shard_count, *where).set(1)

    async def _listen_to_owned(self) -> None:
        with suppress(Unavailable):  # the next fetch does it
            await self._pull.set_subjects([shard_filter(shard) for shard in sorted(self._owned())])


async def start(group: ServiceGroup, values: Mapping[str, str] | None = None) -> None:
    """What `run_service` calls."""
    environment = os.environ if values is None else values
    end = link_of(environment)
    if end is not None:
        await start_queries(group, end, environment)
    else:
        await Projector(group, Settings.from_env(environment), environment).start()
