"""An HTTP server inside the event loop of a service: bound before it is announced, stopped when we say so."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import uvicorn
from noetl_core.errors import Unavailable
from starlette.types import ASGIApp

from noetl_servicekit.env import Address

DRAIN_SECONDS: Final = 5
BACKLOG: Final = 1024
TICK_SECONDS: Final = 1.0


class _Server(uvicorn.Server):
    """Signals belong to the process' lifecycle, and waiting for start and stop needs no polling."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Answer what was asked, and end."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """Once a second, for the date in answers; the library's own looks ten times as often whether it should end."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._leaving.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def serve_http(app: ASGIApp, listen: Address) -> AsyncIterator[Address]:
    """Serves inside the block, and yields the address with the port that was bound."""
    listener = _bind(listen)
    config = uvicorn.Config(
        app,
        log_config=None,  # logs go where the process' logs go
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name=f"http {listen}")
    started = asyncio.create_task(server.up.wait())
    await asyncio.wait({serving, started}, return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    if serving.done():  # it failed before it was up; say why
        listener.close()
        serving.result()
    try:
        yield Address(host=listen.host, port=listener.getsockname()[1])
    finally:
        server.leave()
        await serving


def _bind(listen: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's delay off; without, small answers wait 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((listen.host, listen.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as exc:
        listener.close()
        raise Unavailable(f"cannot listen on {listen}: {exc.strerror}", address=str(listen)) from exc
    return listener
