"""Wires a reaper: whom it asks, and the loops that make it ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import grpc
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import (
    IDEMPOTENT_METHODS,
    CommandClient,
    ExecutionClient,
    PayloadClient,
    ProjectionClient,
    ShardClient,
    WhyClient,
)
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.shard_ownership import ShardMetrics, ShardOwnership
from noetl_servicekit.tracing import current_traceparent

from noetl_reaper.application.collect_payloads import CollectPayloads
from noetl_reaper.application.election import ROLE, Election
from noetl_reaper.application.pass_deadlines import PassDeadlines
from noetl_reaper.application.reclaim_commands import ReclaimCommands
from noetl_reaper.application.report_stalled import ReportStalled
from noetl_reaper.entrypoints.collection_loop import LONGEST_SILENCE_SECONDS, collect_regularly
from noetl_reaper.entrypoints.sweep_loop import Look, sweep_regularly
from noetl_reaper.settings import Settings
from noetl_reaper.telemetry import ReaperMetrics

STALLED_SECONDS: Final = 60.0
"""Between two looks for executions that can never go on."""


async def start(group: ServiceGroup, values: Mapping[str, str] | None = None) -> None:
    """What `run_service` calls."""
    settings = Settings.from_env(os.environ if values is None else values)

    def connect(address: str) -> grpc.aio.Channel:
        return open_channel(
            address,
            token=settings.token,
            traceparent=current_traceparent,
            retryable_methods=IDEMPOTENT_METHODS,
        )

    ops = await group.serve_ops(settings.ops_listen)
    api = await group.enter(connect(settings.api_address))
    projector = await group.enter(connect(settings.projector_address))
    commands = CommandClient(
        default_address=settings.planner_address, shard_count=settings.ownership.shard_count, connect=connect
    )
    group.on_stop(commands.close)
    ownership = ShardOwnership(
        ShardClient(api),
        settings.ownership,
        role=ROLE,
        instance=group.settings.instance,
        address=str(ops),
        metrics=ShardMetrics(group.metrics),
    )
    group.on_stop(ownership.release)
    group.loop("ownership", ownership.run)

    election, reclaimer = Election(ownership), f"urn:noetl:reaper:{group.settings.instance}"
    projections, metrics = ProjectionClient(projector), ReaperMetrics(group.metrics)
    reclaim = ReclaimCommands(
        projections,
        commands,
        election=election,
        reclaimer=reclaimer,
        concurrency=settings.concurrency,
        metrics=metrics,
    )
    pass_deadlines = PassDeadlines(
        projections,
        commands,
        ExecutionClient(api),
        election=election,
        reclaimer=reclaimer,
        concurrency=settings.concurrency,
        metrics=metrics,
    )

    def sweep(name: str, look: Look, every_seconds: float) -> None:
        group.loop(
            name,
            lambda beat: sweep_regularly(look, elected=election.fence, every_seconds=every_seconds, beat=beat),
            max_silence_seconds=30.0 + 3 * every_seconds,
        )

    sweep("sweep", reclaim, settings.interval_seconds)
    sweep("deadlines", pass_deadlines, settings.deadline_seconds)
    report_stalled = ReportStalled(projections, WhyClient(api), quiet_seconds=settings.quiet_seconds, metrics=metrics)
    sweep("stalled", lambda fence: report_stalled(), min(settings.quiet_seconds, STALLED_SECONDS))
    if settings.payload_gc_seconds:
        collect = CollectPayloads(PayloadClient(api), election=election, metrics=metrics)
        group.loop(
            "payload-gc",
            lambda beat: collect_regularly(
                collect, elected=election.fence, every_seconds=settings.payload_gc_seconds, beat=beat
            ),
            max_silence_seconds=LONGEST_SILENCE_SECONDS + 3 * settings.payload_gc_seconds,
        )
    group.ready(ops=ops)
