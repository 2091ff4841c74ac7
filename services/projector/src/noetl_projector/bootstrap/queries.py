"""Wires the process that answers queries: rows and snapshots, and what it hears of the process that writes them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

from noetl_adapters.postgres.pool import open_pool
from noetl_adapters.postgres.projections import PostgresProjections
from noetl_adapters.postgres.snapshots import PostgresSnapshots
from noetl_core.errors import NoetlError
from noetl_servicekit.grpc_server import serve_grpc
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens

from noetl_projector.application.answer_queries import AnswerQueries
from noetl_projector.application.version_signals import VersionSignals
from noetl_projector.entrypoints import projection_service
from noetl_projector.entrypoints.query_link import HeardState, Link
from noetl_projector.settings import Settings

METRICS_SECONDS = 1.0


async def start_queries(group: ServiceGroup, end: socket.socket, values: Mapping[str, str]) -> None:
    """Serve until the other end tells it to go, or is gone; it hears why that could not begin."""
    link = await Link.over(end)
    try:
        await _start(group, link, Settings.from_env(values))
    except NoetlError as exc:
        link.send({"failed": exc.message})
        raise


async def _start(group: ServiceGroup, link: Link, settings: Settings) -> None:
    pool = await group.enter(
        await open_pool(
            settings.postgres_dsn,
            min_size=1,
            max_size=settings.query_pool_max,
            application_name=f"{group.settings.instance}-queries",
        )
    )
    signals, metrics = VersionSignals(), MetricSet()
    heard = HeardState(signals.announce, signals.announce_all)
    queries = AnswerQueries(
        PostgresProjections(pool),
        signals=signals,
        troubles=heard,
        shard_count=settings.ownership.shard_count,
        owns=heard.owns,
    )
    snapshots = PostgresSnapshots(pool)
    address = await group.enter(
        serve_grpc(
            settings.grpc_listen,
            register=lambda server: projection_service.register(server, queries, snapshots),
            service_names=(projection_service.SERVICE_NAME,),
            tokens=Tokens(settings.tokens_file),
            metrics=GrpcServerMetrics(metrics),
            health=group.health,
            drain_seconds=group.settings.stop_seconds / 2,
        )
    )
    signals.ask = lambda wanted: _ask(link, wanted)
    group.loop("writer", lambda beat: _listen(link, heard, group, beat), max_silence_seconds=float("inf"))
    group.loop("metrics", lambda beat: _show_metrics(link, metrics, signals, beat))
    link.send({"port": address.port})


async def _listen(link: Link, heard: HeardState, group: ServiceGroup, beat: Callable[[], None]) -> None:
    beat()  # That nothing is written for long is no reason not to answer.
    async for message in link.messages():
        heard.hear(message)
    if not group.stopping.is_set():
        # Whoever writes is gone without a word, and comes back as another process, which wants this one's address.
        os._exit(1)
    await asyncio.Event().wait()


def _ask(link: Link, wanted: bool) -> None:
    link.send({"waits": wanted})


async def _show_metrics(link: Link, metrics: MetricSet, signals: VersionSignals, beat: Callable[[], None]) -> None:
    while True:
        beat()
        signals.rest()
        link.send({"metrics": metrics.render()[0].decode()})
        await asyncio.sleep(METRICS_SECONDS)
