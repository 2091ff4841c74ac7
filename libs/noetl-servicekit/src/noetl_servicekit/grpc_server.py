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
from noetl_servicekit.http2.server import Http2Server
from noetl_servicekit.interceptors import ServiceCalls
from noetl_servicekit.logging import get_logger
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens

logger = get_logger()

DRAIN_SECONDS: Final = 10.0


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
    server = Http2Server(
        ServiceCalls(tokens, metrics),
        max_message_bytes=MAX_MESSAGE_BYTES,
        max_metadata_bytes=MAX_METADATA_BYTES,
        keepalive_seconds=KEEPALIVE_SECONDS,
    )
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
