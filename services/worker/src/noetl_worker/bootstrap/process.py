"""Wires a worker: which adapter stands behind which port, which tools it has, and which loops run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

from noetl_adapters.nats.connection import NatsConnection
from noetl_adapters.nats.consumers import ConsumerSpec, Start
from noetl_adapters.nats.pull_consumer import NatsPullConsumer
from noetl_adapters.spark.driver_process import SparkDriver
from noetl_contracts.clients import (
    EventLogClient,
    FrameClient,
    ShardClient,
    WorkerClient,
)
from noetl_contracts.subjects import CANCEL_SUBJECT, STOP_SUBJECT, WORK_STREAM, token, work_subject
from noetl_core.placement import Locality
from noetl_core.ports.commands import Worker
from noetl_core.ports.workers import WorkerReport
from noetl_servicekit.bus_reports import log_bus_report
from noetl_servicekit.env import Env
from noetl_servicekit.scratch import scratch_directory
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.shard_ownership import check_shard_count
from noetl_servicekit.tokens import Tokens

from noetl_worker.application.call_progress import CallProgress
from noetl_worker.application.chunk_stream import TellChunks
from noetl_worker.application.frame_work import WorkOfPlanners
from noetl_worker.application.resting import Resting
from noetl_worker.application.slots import Slots
from noetl_worker.application.tool_call import Tool
from noetl_worker.application.wait_at_planners import WaitAtPlanners
from noetl_worker.bootstrap.stages import spark_stages
from noetl_worker.bootstrap.working import Data, open_working, planners
from noetl_worker.entrypoints.presence import leave, tell_presence
from noetl_worker.entrypoints.work_loop import keep_alive, on_cancelled, on_stopped, pull_work
from noetl_worker.settings import Settings
from noetl_worker.telemetry import WorkerMetrics
from noetl_worker.tools.plugins import UnavailableTool
from noetl_worker.tools.spark import SPARK_OFF, SparkTool
from noetl_worker.tools.spark_inputs import SparkInputs
from noetl_worker.tools.toolbox import ToolboxSettings

RATES: Final = "rates"
"""What slots of this worker share on this machine."""


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
    work = settings.work
    scratch = await group.enter(scratch_directory("noetl-worker-"))
    spark = await group.enter(
        SparkDriver(settings.spark, environment=variables, reports=metrics.spark, scratch=scratch)
    )
    working = await group.enter_kept(
        lambda keep: open_working(
            work,
            tool_settings,
            variables=variables,
            token=settings.token,
            metrics=metrics,
            keep=keep,
            more_tools=lambda data: {"spark": _spark_tool(spark, settings, tool_settings, data)},
            rates=scratch / RATES,
        )
    )
    channel, data = working.channel, working.data
    shards = ShardClient(channel)
    await check_shard_count(shards, work.shard_count)
    commands = planners(work, settings.token)
    group.on_stop(commands.close)
    instance = group.settings.instance
    locator = group.settings.topology.locator_of(instance)
    locality = Locality(max_distance=settings.max_distance)
    worker, resting = Worker(worker_id=instance, pool=settings.pool, locator=locator, locality=locality), Resting()
    frames = FrameClient(commands)
    streams = TellChunks(
        commands=commands,
        log=EventLogClient(channel),
        payloads=data.payloads,
        tables=data.tables,
        worker=worker,
        resting=resting,
        count=metrics.chunks_told.inc,
    )
    planned = WorkOfPlanners(commands, frames, at_work=working.at_work)
    runs = working.runs(worker, frames=frames, streams=streams)
    progress = CallProgress()
    metrics.spark.on_progress = progress.spark
    slots = Slots(
        planned, runs, worker=worker, size=settings.slots, metrics=metrics, resting=resting, progress=progress
    )
    stages = spark_stages(
        spark,
        settings,
        worker=worker,
        variables=variables,
        metrics=metrics,
        slots=slots,
        planned=planned,
        holders=frames,
        rates=scratch / RATES,
    )
    bus = NatsConnection(
        settings.nats_url, name=group.settings.instance, token=settings.nats_token or None, report=log_bus_report
    )
    group.loop("nats-connection", bus.run)
    await bus.subscribe(CANCEL_SUBJECT, on_cancelled(slots, stages))
    await bus.subscribe(STOP_SUBJECT, on_stopped(slots, stages))
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
            kinds=working.tools.kinds,
            version=version("noetl-worker"),
            locator=locator,
            retries=working.retries.told(),
        )

    group.loop(
        "presence",
        lambda beat: tell_presence(presence, report, every_seconds=work.heartbeat_seconds, beat=beat),
    )
    group.loop("heartbeat", lambda beat: keep_alive(slots, every_seconds=work.heartbeat_seconds, beat=beat))
    # Runs first when the process stops: what is under way gets most of the time there is.
    stop_seconds = group.settings.stop_seconds * 0.7
    group.on_stop(lambda: asyncio.gather(slots.drain(seconds=stop_seconds), stages.drain(seconds=stop_seconds)))
    if settings.spark_enabled and settings.spark_warm:
        await spark.warm()  # before anybody counts on this worker: a session takes seconds to start
    group.loop("work", lambda beat: pull_work(consumer, slots, stages, beat=beat))
    waiting = WaitAtPlanners(
        commands,
        slots,
        worker=worker,
        addresses=lambda: _planner_addresses(shards),
        every_seconds=work.heartbeat_seconds,
    )
    group.loop("waiting", waiting.run)
    group.on_stop(waiting.stop)  # runs before all others, so that nothing is claimed for a worker that stops
    group.ready(grpc=grpc, ops=ops)


async def _planner_addresses(shards: ShardClient) -> list[str]:
    """Of everybody who plans."""
    return sorted({lease.address for lease in await shards.list_shards("planner") if lease.instance})


def _spark_tool(spark: SparkDriver, settings: Settings, tool_settings: ToolboxSettings, data: Data) -> Tool:
    if not settings.spark_enabled:
        return UnavailableTool(SPARK_OFF)
    inputs = SparkInputs(data.payloads, data.tables)
    return SparkTool(spark, inputs, data.rows, default_timeout_seconds=tool_settings.sql_timeout_seconds)
