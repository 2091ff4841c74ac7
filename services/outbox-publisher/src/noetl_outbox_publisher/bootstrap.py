"""Wires a publisher: which adapter stands behind which port, and which loops run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from uuid import uuid4

from noetl_adapters.nats.connection import NatsConnection
from noetl_adapters.nats.publisher import NatsPublisher
from noetl_adapters.postgres.commit_listener import PostgresCommitListener
from noetl_adapters.postgres.commit_signal import PostgresCommitSignal
from noetl_adapters.postgres.outbox import PostgresOutbox, open_outbox_pool
from noetl_adapters.postgres.outbox_leases import PostgresOutboxLeases
from noetl_core.ports.outbox import OutboxPublisher
from noetl_servicekit.bus_reports import log_bus_report
from noetl_servicekit.env import Address
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.tokens import Tokens

from noetl_outbox_publisher.application.drain import Drain
from noetl_outbox_publisher.application.publish_batch import PublishBatch
from noetl_outbox_publisher.entrypoints.drain_loop import DrainLoop, measure_backlog
from noetl_outbox_publisher.settings import Settings
from noetl_outbox_publisher.telemetry import PublisherMetrics

MAX_SILENCE_SECONDS = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line offers besides what every service has."""
    parser.add_argument("--once", action="store_true", help="drain until the outbox is empty, then exit")
    parser.add_argument(
        "--timeout-seconds",
        type=float,
        default=60.0,
        help="with --once: exit with 1 if it is not empty by then (default: %(default)s)",
    )


async def start(group: ServiceGroup, values: Mapping[str, str] | None = None) -> None:
    """What `run_service` calls."""
    settings = Settings.from_env(os.environ if values is None else values)
    once = bool(getattr(group.arguments, "once", False))
    addresses = {} if once else await _serve(group, settings)
    metrics = PublisherMetrics(group.metrics)
    instance = group.settings.instance
    pool = open_outbox_pool(settings.postgres_dsn, application_name=instance)
    group.on_stop(pool.close)
    bus = NatsConnection(settings.nats_url, name=instance, token=settings.nats_token or None, report=log_bus_report)
    group.loop("nats-connection", bus.run)
    group.health.check("nats", lambda: None if bus.connected else "NATS is away")
    outbox = PostgresOutbox(pool)
    signal = PostgresCommitSignal()
    drain = Drain(
        PostgresOutboxLeases(pool),
        PublishBatch(
            outbox,
            NatsPublisher(
                bus,
                stream_replicas=settings.stream_replicas,
                max_in_flight=settings.batch_rows,
                ack_timeout_seconds=settings.publish_seconds,
            ),
            metrics,
            batch_rows=settings.batch_rows,
            publish_seconds=settings.publish_seconds,
            traced=group.settings.otlp_endpoint is not None,
            heard_of_more=signal.heard,
        ),
        metrics,
        publisher=OutboxPublisher(instance=instance, incarnation=uuid4().hex),
        lease_seconds=settings.lease_seconds,
        poll_seconds=settings.poll_seconds,
    )
    group.on_stop(drain.end)
    loop = DrainLoop(
        drain,
        signal,
        shard_count=settings.shard_count,
        poll_seconds=settings.poll_seconds,
        stopping=group.stopping,
    )
    if once:
        await loop.until_empty(outbox, timeout_seconds=group.arguments.timeout_seconds)
        group.stop("the outbox is empty")
        return
    listener = PostgresCommitListener(settings.postgres_dsn, application_name=instance, hear=signal.hear)
    group.loop("commit_listener", listener.run, max_silence_seconds=MAX_SILENCE_SECONDS)
    group.loop("backlog", lambda beat: measure_backlog(outbox, metrics, beat), max_silence_seconds=MAX_SILENCE_SECONDS)
    group.loop("drain", loop.run, max_silence_seconds=MAX_SILENCE_SECONDS, drains=True)
    group.ready(**addresses)


async def _serve(group: ServiceGroup, settings: Settings) -> dict[str, Address]:
    ops = await group.serve_ops(settings.ops_listen)
    grpc = await group.serve_grpc(
        settings.grpc_listen, register=lambda server: None, service_names=(), tokens=Tokens(settings.tokens_file)
    )
    return {"grpc": grpc, "ops": ops}
