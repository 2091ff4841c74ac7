"""A gRPC server of the library's shape on our own HTTP/2: generated code registers with it as with any other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc

from noetl_servicekit.http2.server_connection import Route, ServerConnection
from noetl_servicekit.logging import get_logger
from noetl_servicekit.server_call import CallInterceptor

logger = get_logger()

_BACKLOG: Final = 1_024
_PATIENCE_SECONDS: Final = 20.0
_FLUSH_SECONDS: Final = 1.0
_CANCEL_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Details(grpc.HandlerCallDetails):
    """What the library's handlers are asked with."""

    method: str
    invocation_metadata: tuple[()] = ()


class Http2Server(grpc.aio.Server):
    """Every method runs within the interceptor; connections are plain, as inside a cluster."""

    def __init__(
        self,
        interceptor: CallInterceptor,
        *,
        max_message_bytes: int,
        max_metadata_bytes: int,
        keepalive_seconds: float,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.max_metadata_bytes = max_metadata_bytes
        self._interceptor = interceptor
        self._keepalive_seconds = keepalive_seconds
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._routes: dict[str, Route] = {}
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self.connections: set[ServerConnection] = set()
        self._stopping = False
        self._stopped = asyncio.Event()

    # What is served.

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._handlers += generic_rpc_handlers

    def route(self, path: str) -> Route | None:
        known = self._routes.get(path)
        if known is not None:
            return known
        details = _Details(path)
        handler: Any = next(filter(None, (one.service(details) for one in self._handlers)), None)
        if handler is None:
            return None
        self._routes[path] = route = Route(
            full_name=path,
            behaviour=self._interceptor.around(path, handler),
            streams_requests=bool(handler.request_streaming),
            streams_answers=bool(handler.response_streaming),
            deserialize=handler.request_deserializer,
            serialize=handler.response_serializer,
        )
        return route

    # Where.

    def add_insecure_port(self, address: str) -> int:
        """Bind; port 0 means any. Raises `RuntimeError`, as the library does."""
        host, _, port = address.rpartition(":")
        try:
            bound = _bind(host.strip("[]"), int(port))
        except OSError as exc:
            raise RuntimeError(f"{exc.strerror or exc}") from exc
        self._sockets.append(bound)
        number: int = bound.getsockname()[1]
        return number

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        raise RuntimeError("TLS ends before the services: at an ingress or a mesh")

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            self._servers.append(await loop.create_server(self._accept, sock=bound, backlog=_BACKLOG))

    def _accept(self) -> ServerConnection:
        return ServerConnection(self, keepalive_seconds=self._keepalive_seconds, patience=_PATIENCE_SECONDS)

    def opened(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        if self._stopping:  # it was accepted just before the end
            asyncio.get_running_loop().call_soon(connection.close, "the server is going away")

    def gone(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)

    def stranger(self, full_name: str, exc: Exception) -> None:
        logger.error("rpc.failed", rpc_method=full_name, error=type(exc).__qualname__, exc_info=exc)

    # The end.

    async def stop(self, grace: float | None) -> None:
        """Take no new calls, give those under way `grace` seconds, and hang up."""
        self._stopping = True
        for server in self._servers:
            server.close()
        for bound in self._sockets:
            bound.close()
        for connection in self.connections:
            connection.go_away()
        if grace:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await asyncio.gather(*(connection.idle() for connection in self.connections))
        tasks = [call.task for connection in self.connections for call in connection.calls]
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
            if stuck:
                logger.warning("grpc.calls_left", calls=len(stuck))
        open_ones = list(self.connections)
        for connection in open_ones:
            connection.close("the server is going away")
        if open_ones:
            await asyncio.wait([connection.closed for connection in open_ones], timeout=_FLUSH_SECONDS)
        for connection in list(self.connections):
            connection.abort("the server is going away")
        self._stopped.set()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._stopped.wait()
        except TimeoutError:
            return True
        return False


def _bind(host: str, port: int) -> socket.socket:
    if host in ("::", ""):
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # Two processes on one port would each get half of the calls; the second is to be refused instead.
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG, reuse_port=False)
