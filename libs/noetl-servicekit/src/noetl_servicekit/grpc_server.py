"""The gRPC server that every service runs: interceptors, health, reflection, limits, a stop that drains."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import grpc
from grpc_reflection.v1alpha import reflection
from noetl_contracts.channel import KEEPALIVE_SECONDS, MAX_MESSAGE_BYTES, MAX_METADATA_BYTES
from noetl_core.errors import Unavailable

from noetl_servicekit import grpc_health
from noetl_servicekit.env import Address
from noetl_servicekit.health import Health
from noetl_servicekit.interceptors import server_interceptors
from noetl_servicekit.logging import get_logger
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens

logger = get_logger()

DRAIN_SECONDS: Final = 10.0

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    # Two processes on one port would each get half of the calls; the second is to be refused instead.
    ("grpc.so_reuseport", 0),
    # Our clients ping idle connections; a server that minds would hang up on them.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 1000 // 2),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
)


@asynccontextmanager
async def serve_grpc(
    listen: Address,
    *,
    register: Callable[[grpc.aio.Server], None],
    service_names: Sequence[str],
    tokens: Tokens,
    metrics: GrpcServerMetrics,
    health: Health,
    drain_seconds: float = DRAIN_SECONDS,
) -> AsyncIterator[Address]:
    """Serves inside the block, and yields the address with the port that was bound.

    `register` adds the servicers. On the way out the process turns not ready, no new call is taken, and
    calls under way get `drain_seconds` to finish before they are cancelled.
    """
    server = grpc.aio.server(interceptors=server_interceptors(tokens=tokens, metrics=metrics), options=_OPTIONS)
    register(server)
    grpc_health.add_health_service(server, health, service_names)
    reflection.enable_server_reflection((*service_names, grpc_health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        port = server.add_insecure_port(str(listen))
    except RuntimeError as exc:
        raise Unavailable(f"cannot listen on {listen}: {exc}", address=str(listen)) from exc
    await server.start()
    try:
        yield Address(host=listen.host, port=port)
    finally:
        health.drain()
        logger.info("grpc.draining", drain_seconds=drain_seconds)
        await server.stop(drain_seconds)
