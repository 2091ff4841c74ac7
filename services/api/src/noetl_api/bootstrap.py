"""Wires api: which adapter stands behind which port, and which loops run."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime

import grpc
from noetl_adapters.arrow.lazy_tables import StoredTables
from noetl_adapters.payload.open_shm import SharedMemorySettings
from noetl_adapters.payload.open_store import open_payload_store, open_tiered_store
from noetl_adapters.postgres.catalog import PostgresCatalog
from noetl_adapters.postgres.commit_listener import PostgresCommitListener, moved_streams
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.credentials import PostgresCredentials
from noetl_adapters.postgres.descendants import PostgresDescendants
from noetl_adapters.postgres.event_columns import PostgresEventColumns
from noetl_adapters.postgres.event_finder import PostgresEventFinder
from noetl_adapters.postgres.event_log import PostgresEventLog
from noetl_adapters.postgres.leases import PostgresShardLeases
from noetl_adapters.postgres.lineage import PostgresLineage
from noetl_adapters.postgres.partitions import PostgresPartitions
from noetl_adapters.postgres.pool import LOOKUPS, open_pool
from noetl_adapters.postgres.reachability import PostgresLogScan
from noetl_adapters.postgres.routing_snapshots import PostgresRoutingSnapshots
from noetl_adapters.postgres.streams import PostgresStreams
from noetl_adapters.postgres.workers import PostgresWorkerPresence
from noetl_adapters.secrets.aes_gcm import AesGcmSealer
from noetl_adapters.secrets.sources import key_provider
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import IDEMPOTENT_METHODS, CommandClient, FrameClient, ProjectionClient, SnapshotClient
from noetl_core.append import AppendRequest, PreparedRequest, prepare
from noetl_core.envelope import StoredEvent
from noetl_core.ids import Snowflake
from noetl_core.ports.payloads import CollectablePayloads, PayloadStore
from noetl_core.ports.reachability import LogScan
from noetl_core.ports.snapshots import FetchSnapshots
from noetl_core.replay.snapshots import Rules
from noetl_servicekit.code_version import code_version
from noetl_servicekit.env import SettingsInvalid
from noetl_servicekit.failed_rows import FailedRows
from noetl_servicekit.http_server import serve_http
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.shared_memory import warn_of_shared_memory
from noetl_servicekit.stored_values import StoredValues
from noetl_servicekit.tokens import Tokens
from noetl_servicekit.tracing import current_traceparent

from noetl_api.application.admission import Admission
from noetl_api.application.append_events import AppendEvents
from noetl_api.application.cancel_execution import CancelExecution
from noetl_api.application.check_columns import CheckColumns
from noetl_api.application.collect_payloads import CollectPayloads, claim_payload_store
from noetl_api.application.commands import IssuedCommands
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.credentials import Credentials
from noetl_api.application.explain_execution import ExplainExecution
from noetl_api.application.failed_rows import FailedRowsOf
from noetl_api.application.finalize_execution import FinalizeExecution
from noetl_api.application.frames import StageFrames
from noetl_api.application.group_commit import GroupCommit
from noetl_api.application.ingest_events import IngestEvents
from noetl_api.application.key_reports import log_key_report
from noetl_api.application.list_rows import ListLive, ListRows
from noetl_api.application.list_streams import ListStreams
from noetl_api.application.notice_starts import NoticeStarts
from noetl_api.application.payloads import ReadPayloads
from noetl_api.application.playbooks import FindPlaybooks, ParsedPlaybooks, RegisterPlaybook
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.application.read_events import ReadEvents
from noetl_api.application.read_logs import ReadLogs
from noetl_api.application.redrive_execution import RedriveExecution
from noetl_api.application.replay_histories import ReplayHistories
from noetl_api.application.replay_points import ReplayPoints
from noetl_api.application.replay_seeds import ReplaySeeds
from noetl_api.application.replay_state import ReplayState
from noetl_api.application.resolve_payloads import ResolvePayloads
from noetl_api.application.rotate_credentials import RotateCredentials
from noetl_api.application.routing import Routing
from noetl_api.application.shards import Shards
from noetl_api.application.start_execution import StartExecution
from noetl_api.application.steer_execution import SteerExecution
from noetl_api.application.trace_result import TraceResult
from noetl_api.application.use_cases import UseCases
from noetl_api.application.variables import ReadVariables
from noetl_api.application.watch_events import WatchEvents
from noetl_api.application.workers import Workers
from noetl_api.entrypoints import grpc as grpc_services
from noetl_api.entrypoints.http.app import make_app
from noetl_api.entrypoints.partition_keeper import MAX_SILENCE_SECONDS, ensure_partitions, keep_partitions
from noetl_api.entrypoints.routing_keeper import MAX_SILENCE_SECONDS as ROUTING_SILENCE_SECONDS
from noetl_api.entrypoints.routing_keeper import drop_ended_routing
from noetl_api.settings import Settings
from noetl_api.telemetry import ApiMetrics

PROJECTION_TIMEOUT_SECONDS = 2.0


class Api:
    """One api process; parts are made here and started in `start`."""

    def __init__(self, group: ServiceGroup, settings: Settings, environment: Mapping[str, str]) -> None:
        self._group = group
        self._settings = settings
        self._environment = environment
        self._metrics = ApiMetrics(group.metrics)
        self._signal = CommitSignal()
        self._listening = asyncio.Event()
        self._metrics.count_watchers(lambda: self._signal.watcher_count)

    async def start(self) -> None:
        """Start everything, the operator's port first and what callers use last."""
        group, settings = self._group, self._settings
        tokens = Tokens(settings.tokens_file)
        ops = await group.serve_ops(settings.ops_listen)
        pool = await self._open_pool("api", settings.pool_min_size, settings.pool_max_size)
        # Upkeep has connections of its own, so that no load of callers can starve it.
        background = await self._open_pool("api-background", 1, settings.background_pool_max_size)
        leases = PostgresShardLeases(background)
        await self._check_installation(leases)
        partitions = PostgresPartitions(background)
        await ensure_partitions(partitions, self._metrics)
        payloads = await self._open_payloads()
        ids = Snowflake(await partitions.next_node())
        collectable = await group.enter(open_payload_store(settings.payload_url, self._environment))
        await claim_payload_store(collectable, leases)
        projector = self._projector()
        admission = Admission(PostgresStreams(background), at_most=settings.max_open_executions, metrics=self._metrics)
        use_cases = self._use_cases(
            pool,
            leases,
            ids,
            ProjectionClient(projector, timeout=PROJECTION_TIMEOUT_SECONDS),
            payloads,
            snapshots=SnapshotClient(projector),
            collectable=collectable,
            scan=PostgresLogScan(background),
            admission=admission,
        )
        if settings.max_open_executions:
            group.loop("admission", admission.keep_measuring)
        group.loop(
            "partitions",
            lambda beat: keep_partitions(partitions, self._metrics, beat=beat),
            max_silence_seconds=MAX_SILENCE_SECONDS,
        )
        ended_routing = PostgresRoutingSnapshots(background)
        group.loop(
            "routing",
            lambda beat: drop_ended_routing(ended_routing, beat=beat),
            max_silence_seconds=ROUTING_SILENCE_SECONDS,
        )
        listener = PostgresCommitListener(
            settings.postgres_dsn, application_name="noetl-api-commits", hear=self._hear_of_commit
        )
        group.loop("commits", listener.run)
        await self._listening.wait()
        grpc_address = await group.serve_grpc(
            settings.grpc_listen,
            register=lambda server: grpc_services.register(server, use_cases),
            service_names=grpc_services.SERVICE_NAMES,
            tokens=tokens,
        )
        app = make_app(use_cases=use_cases, tokens=tokens, health=group.health, metrics=self._metrics)
        http_address = await group.enter(serve_http(app, settings.http_listen))
        group.on_stop(self._send_followers_away)
        group.ready(grpc=grpc_address, http=http_address, ops=ops)

    def _use_cases(
        self,
        pool: ConnectionPool,
        leases: PostgresShardLeases,
        ids: Snowflake,
        projections: ProjectionClient,
        payloads: PayloadStore,
        *,
        snapshots: FetchSnapshots,
        collectable: CollectablePayloads,
        scan: LogScan,
        admission: Admission,
    ) -> UseCases:
        settings = self._settings

        def next_id() -> int:
            return ids.next(time.time_ns() // 1_000_000)

        def prepared(request: AppendRequest) -> PreparedRequest:
            now_ms = time.time_ns() // 1_000_000
            return prepare(
                request, next_event_id=lambda: ids.next(now_ms), now=_now(), shard_count=settings.shard_count
            )

        log = GroupCommit(PostgresEventLog(pool), prepare=prepared, signal=self._signal, metrics=self._metrics.append)
        self._group.on_stop(log.close)
        self._group.health.check("appends", log.stuck)
        catalog = PostgresCatalog(pool)
        credentials, sealer = PostgresCredentials(pool), self._sealer()
        append_events = AppendEvents(log)
        read_events, watch_events = ReadEvents(log), WatchEvents(log, self._signal)
        parsed, presence, planner = ParsedPlaybooks(), PostgresWorkerPresence(pool), self._planner()
        query_executions = QueryExecutions(projections=projections, log=log, signal=self._signal, metrics=self._metrics)
        lineage, finder, streams = PostgresLineage(pool), PostgresEventFinder(pool), PostgresStreams(pool)
        return UseCases(
            append_events=append_events,
            ingest_events=IngestEvents(append_events, make_key=lambda: uuid.uuid4().hex),
            read_events=read_events,
            list_streams=ListStreams(streams, streams),
            list_rows=ListRows(projections),
            list_live=ListLive(projections),
            check_columns=CheckColumns(PostgresEventColumns(pool)),
            read_logs=ReadLogs(read_events=read_events, watch_events=watch_events, payloads=payloads),
            read_payloads=ReadPayloads(payloads, lineage),
            trace_result=TraceResult(lineage),
            collect_payloads=CollectPayloads(
                log=log,
                scan=scan,
                payloads=collectable,
                leases=leases,
                next_id=next_id,
                metrics=self._metrics.collection,
                grace_seconds=settings.payload_gc_grace_seconds,
                min_grace_seconds=settings.payload_gc_min_grace_seconds,
            ),
            watch_events=watch_events,
            register_playbook=RegisterPlaybook(catalog, next_id=next_id, plugin_kinds=settings.plugin_kinds),
            find_playbooks=FindPlaybooks(catalog),
            start_execution=StartExecution(
                log=log,
                catalog=catalog,
                parsed=parsed,
                payloads=payloads,
                next_id=next_id,
                clock=_now,
                playbook_env=settings.playbook_env,
                metrics=self._metrics,
                on_started=self._notice_starts(planner),
                let_in=admission,
                append_ahead=log.append_ahead,
            ),
            cancel_execution=CancelExecution(log, PostgresDescendants(pool)),
            steer_execution=SteerExecution(log, PostgresDescendants(pool), planner),
            finalize_execution=FinalizeExecution(log),
            redrive_execution=RedriveExecution(
                log=log,
                executions=query_executions,
                catalog=catalog,
                parsed=parsed,
                payloads=payloads,
                failed_rows=FailedRowsOf(FailedRows(log, StoredValues(payloads, StoredTables())), payloads=payloads),
                next_id=next_id,
                metrics=self._metrics,
            ),
            query_executions=query_executions,
            replay_state=ReplayState(
                points=ReplayPoints(log, finder),
                histories=ReplayHistories(
                    log,
                    ReplaySeeds(snapshots, Rules(code_version=code_version()), metrics=self._metrics.replay),
                    metrics=self._metrics.replay,
                ),
                resolve=ResolvePayloads(payloads),
            ),
            explain_execution=ExplainExecution(
                executions=query_executions, catalog=catalog, parsed=parsed, workers=presence, clock=_now
            ),
            read_variables=ReadVariables(executions=query_executions, payloads=payloads),
            issued_commands=IssuedCommands(events=finder, executions=query_executions, planner=planner),
            stage_frames=StageFrames(
                executions=query_executions,
                planner=FrameClient(planner) if planner is not None else None,
                events=finder,
                payloads=payloads,
                clock=_now,
            ),
            credentials=Credentials(credentials, sealer, next_id=next_id, metrics=self._metrics.credentials),
            rotate_credentials=RotateCredentials(credentials, sealer, metrics=self._metrics.credentials),
            workers=Workers(presence),
            shards=Shards(leases),
            routing=Routing(PostgresRoutingSnapshots(pool)),
            leases=leases,
        )

    async def _open_payloads(self) -> PayloadStore:
        """What workers of this node have just written need not come from the store; nothing else is kept here."""
        return await self._group.enter_kept(
            lambda keep: open_tiered_store(
                self._settings.payload_url,
                self._environment,
                memory_bytes=0,
                shared_memory=SharedMemorySettings(**asdict(self._settings.shared_memory)),
                reports=self._metrics.payloads,
                warn=warn_of_shared_memory,
                keep=keep,
            )
        )

    def _sealer(self) -> AesGcmSealer | None:
        """None without keys: credentials are then refused, and everything else works."""
        keys = key_provider(
            keys=self._settings.credential_keys,
            keys_file=self._settings.credential_keys_file,
            provider=self._settings.credential_key_provider,
            environment=self._environment,
            report=log_key_report,
        )
        return AesGcmSealer(keys) if keys is not None else None

    def _projector(self) -> grpc.aio.Channel:
        # Nothing is tried again: a projector that is away costs a query nothing, since the log answers.
        channel = open_channel(
            self._settings.projector_address, token=self._settings.token, traceparent=current_traceparent
        )
        self._group.on_stop(channel.close)
        return channel

    def _planner(self) -> CommandClient | None:
        """For steering, for news of starts, and for workers that claim over HTTP; those of NoETL ask it themselves."""
        settings = self._settings
        if not settings.planner_address:
            return None
        client = CommandClient(
            default_address=settings.planner_address,
            shard_count=settings.shard_count,
            connect=lambda address: open_channel(
                address, token=settings.token, traceparent=current_traceparent, retryable_methods=IDEMPOTENT_METHODS
            ),
        )
        self._group.on_stop(client.close)
        return client

    def _notice_starts(self, planner: CommandClient | None) -> Callable[[int, StoredEvent, bytes], None]:
        if planner is None:
            return lambda execution_id, first, workload: None
        notice = NoticeStarts(planner)
        self._group.on_stop(notice.close)
        return notice

    async def _open_pool(self, name: str, min_size: int, max_size: int) -> ConnectionPool:
        pool = await open_pool(
            self._settings.postgres_dsn,
            min_size=min_size,
            max_size=max_size,
            application_name=f"noetl-{name}",
            settings=LOOKUPS,
        )
        self._group.on_stop(pool.close)
        self._metrics.watch_pool(name, lambda: (pool.size - pool.idle_size) / max_size)
        return pool

    async def _check_installation(self, leases: PostgresShardLeases) -> None:
        installed = (await leases.installation()).shard_count
        if installed != self._settings.shard_count:
            raise SettingsInvalid(
                [f"NOETL_SHARD_COUNT is {self._settings.shard_count}, this installation has {installed} shards"]
            )

    def _hear_of_commit(self, notice: str) -> None:
        self._listening.set()
        moved = moved_streams(notice)
        if moved is None:
            self._signal.anything_moved()
            return
        for execution_id, version in moved:
            self._signal.heard(execution_id, version)

    async def _send_followers_away(self) -> None:
        """Before the servers drain: a stream that nobody ends would keep them from stopping."""
        self._signal.close()


def _now() -> datetime:
    return datetime.now(UTC)


async def start(group: ServiceGroup, values: Mapping[str, str] | None = None) -> None:
    """What `run_service` calls."""
    environment = os.environ if values is None else values
    await Api(group, Settings.from_env(environment), environment).start()
