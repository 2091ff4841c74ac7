"""Wires a worker: which adapter stands behind which port, which tools it has, and which loops run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version

from noetl_adapters.arrow.ipc import ArrowTables
from noetl_adapters.nats.connection import NatsConnection
from noetl_adapters.nats.consumers import ConsumerSpec, Start
from noetl_adapters.nats.pull_consumer import NatsPullConsumer
from noetl_adapters.payload.open_shm import SharedMemorySettings
from noetl_adapters.payload.open_store import open_tiered_store
from noetl_adapters.secrets.rs256 import sign_rs256
from noetl_adapters.spark.driver_process import SparkDriver
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import (
    IDEMPOTENT_METHODS,
    CatalogClient,
    CommandClient,
    EventLogClient,
    ExecutionClient,
    FrameClient,
    ResolvedCredentials,
    ShardClient,
    WorkerClient,
)
from noetl_contracts.subjects import CANCEL_SUBJECT, STOP_SUBJECT, WORK_STREAM, token, work_subject
from noetl_core.ports.commands import Worker
from noetl_core.ports.workers import WorkerReport
from noetl_servicekit.bus_reports import log_bus_report
from noetl_servicekit.chunk_rows import LoadRows
from noetl_servicekit.env import Env
from noetl_servicekit.loop_results import LoopResults
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.shard_ownership import check_shard_count
from noetl_servicekit.shared_memory import warn_of_shared_memory
from noetl_servicekit.tokens import Tokens
from noetl_servicekit.tracing import current_traceparent

from noetl_worker.application.child_calls import ChildCalls
from noetl_worker.application.chunk_stream import TellChunks
from noetl_worker.application.claim_rows import ClaimRows
from noetl_worker.application.frame_work import WorkOfPlanners
from noetl_worker.application.persist_before_emit import PersistBeforeEmit
from noetl_worker.application.pipeline import Pipeline
from noetl_worker.application.rate_limits import RateLimits
from noetl_worker.application.resting import Resting
from noetl_worker.application.run_command import RunCommand
from noetl_worker.application.slots import Slots
from noetl_worker.application.step_names import StepNames
from noetl_worker.application.tool_call import Tool
from noetl_worker.application.waiting_retries import WaitingRetries
from noetl_worker.entrypoints.presence import leave, tell_presence
from noetl_worker.entrypoints.work_loop import keep_alive, on_cancelled, on_stopped, pull_work
from noetl_worker.settings import Settings
from noetl_worker.telemetry import WorkerMetrics
from noetl_worker.tools.keychain import open_keychain
from noetl_worker.tools.plugins import UnavailableTool
from noetl_worker.tools.spark import SPARK_OFF, SparkTool
from noetl_worker.tools.spark_inputs import SparkInputs
from noetl_worker.tools.toolbox import ToolboxSettings, build_toolbox


async def start(group: ServiceGroup, values: Mapping[str, str] | None = None) -> None:
    """What `run_service` calls."""
    variables = dict(os.environ if values is None else values)
    env = Env(variables)
    settings = Settings.read(env)
    tool_settings = ToolboxSettings.read(env, slots=settings.slots, python_spares=settings.python_spares)
    env.check()
    ops = await group.serve_ops(settings.ops_listen)
    grpc = await group.serve_grpc(
        settings.grpc_listen, register=lambda server: None, service_names=(), tokens=Tokens(settings.tokens_file)
    )
    metrics = WorkerMetrics(group.metrics)
    payloads = await group.enter(
        open_tiered_store(
            settings.payload_url,
            variables,
            memory_bytes=settings.payload_memory_bytes,
            shared_memory=SharedMemorySettings(**asdict(settings.shared_memory)),
            cache_directory=settings.payload_cache_dir,
            cache_bytes=settings.payload_cache_bytes,
            reports=metrics.payloads,
            warn=warn_of_shared_memory,
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
    await check_shard_count(ShardClient(channel), settings.shard_count)
    commands = CommandClient(
        default_address=settings.planner_address,
        shard_count=settings.shard_count,
        connect=lambda address: open_channel(
            address, token=settings.token, traceparent=current_traceparent, retryable_methods=IDEMPOTENT_METHODS
        ),
    )
    group.on_stop(commands.close)
    tables = ArrowTables(compression=settings.table_compression)
    rows = LoadRows(payloads, tables)
    spark = await group.enter(SparkDriver(settings.spark, environment=variables, reports=metrics.spark))
    tools = await group.enter(
        build_toolbox(
            tool_settings,
            payloads=payloads,
            tables=tables,
            credentials=ResolvedCredentials(channel),
            variables=variables,
            more_tools={"spark": _spark_tool(spark, settings, tool_settings, SparkInputs(payloads, tables), rows)},
        )
    )
    keychain = await group.enter(
        open_keychain(
            credentials=ResolvedCredentials(channel),
            variables=variables,
            sign=sign_rs256,
            count=lambda kind, outcome: metrics.keychain.labels(kind, outcome).inc(),
            plugins=None if tool_settings.plugins_enabled else (),
        )
    )
    loops = LoopResults(EventLogClient(channel), rows.values)
    children, limits = ChildCalls(ExecutionClient(channel), rows.values, loops=loops), RateLimits()
    retries = WaitingRetries()
    instance = group.settings.instance
    locator = group.settings.topology.locator_of(instance)
    worker, resting = Worker(worker_id=instance, pool=settings.pool, locator=locator), Resting()
    frames, persist = FrameClient(commands), PersistBeforeEmit(payloads, tables)
    slots = Slots(
        WorkOfPlanners(commands, frames),
        RunCommand(
            playbooks=PinnedPlaybooks(CatalogClient(channel)),
            names=StepNames(rows, loops),
            pipeline=Pipeline(
                tools,
                keychain=keychain,
                children=children,
                limits=limits,
                retries=retries,
                streams=TellChunks(
                    commands=commands,
                    log=EventLogClient(channel),
                    payloads=payloads,
                    tables=tables,
                    worker=worker,
                    resting=resting,
                    count=metrics.chunks_told.inc,
                ),
            ),
            persist=persist,
            payloads=payloads,
            rows=rows,
            loops=loops,
            # Rows of frames have no events of their own, and so no chunks.
            frame_pipeline=Pipeline(tools, keychain=keychain, children=children, limits=limits, retries=retries),
            claim_rows=ClaimRows(tools, persist=persist, tell=frames, worker=worker, keychain=keychain),
        ),
        worker=worker,
        size=settings.slots,
        metrics=metrics,
        resting=resting,
    )
    bus = await group.enter(
        NatsConnection(
            settings.nats_url, name=group.settings.instance, token=settings.nats_token or None, report=log_bus_report
        )
    )
    await bus.subscribe(CANCEL_SUBJECT, on_cancelled(slots))
    await bus.subscribe(STOP_SUBJECT, on_stopped(slots))
    consumer = NatsPullConsumer(
        bus,
        ConsumerSpec(
            stream=WORK_STREAM,
            durable=token(f"pool-{settings.pool}"),
            subjects=(work_subject(pool=settings.pool, kind="command"),),
            start=Start.ALL,
            shared=True,
            max_ack_pending=10_000,
        ),
    )
    group.on_stop(consumer.close)
    presence = WorkerClient(channel)
    group.on_stop(lambda: leave(presence, group.settings.instance))

    def report() -> WorkerReport:
        return WorkerReport(
            worker_id=group.settings.instance,
            pool=settings.pool,
            slots=settings.slots,
            busy=slots.busy,
            kinds=tools.kinds,
            version=version("noetl-worker"),
            locator=locator,
            retries=retries.told(),
        )

    group.loop(
        "presence",
        lambda beat: tell_presence(presence, report, every_seconds=settings.heartbeat_seconds, beat=beat),
    )
    group.loop("heartbeat", lambda beat: keep_alive(slots, every_seconds=settings.heartbeat_seconds, beat=beat))
    # Runs first when the process stops: what is under way gets most of the time there is.
    group.on_stop(lambda: slots.drain(seconds=group.settings.stop_seconds * 0.7))
    if settings.spark_enabled and settings.spark_warm:
        await spark.warm()  # before anybody counts on this worker: a session takes seconds to start
    group.loop("work", lambda beat: pull_work(consumer, slots, beat=beat))
    group.ready(grpc=grpc, ops=ops)


def _spark_tool(
    spark: SparkDriver, settings: Settings, tool_settings: ToolboxSettings, inputs: SparkInputs, rows: LoadRows
) -> Tool:
    if not settings.spark_enabled:
        return UnavailableTool(SPARK_OFF)
    return SparkTool(spark, inputs, rows, default_timeout_seconds=tool_settings.sql_timeout_seconds)
