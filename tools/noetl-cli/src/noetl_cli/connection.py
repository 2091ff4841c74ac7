"""Finds the server that a command talks to, and opens its clients."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc
from noetl_contracts import clients
from noetl_contracts.channel import open_channel
from noetl_contracts.clients.methods import IDEMPOTENT_METHODS
from noetl_core.errors import InvalidInput, Unavailable

from noetl_cli.dev.endpoint import LocalEndpoint
from noetl_cli.dev.home import StackHome

ADDRESS_VARIABLE = "NOETL_API_ADDRESS"
TOKEN_VARIABLE = "NOETL_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "NOETL_TOKEN_FILE"  # noqa: S105 - the name of a variable
_TLS_SCHEMES = ("https://", "grpcs://")
_PLAIN_SCHEMES = ("http://", "grpc://")

Command = TypeVar("Command", bound=Callable[..., Any])


class NoServer(Unavailable):
    """Nobody told us of a server, and none runs here."""

    code = "cli.no_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where api is and who we are there."""

    address: str
    token: str | None = field(repr=False)
    tls: bool = False


FindServer = Callable[[], Server]


class Clients:
    """The contracts of api, each loaded when used; without a scope, the token decides whose data they are about."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    @functools.cached_property
    def catalog(self) -> clients.CatalogClient:
        return clients.CatalogClient(self._channel)

    @functools.cached_property
    def executions(self) -> clients.ExecutionClient:
        return clients.ExecutionClient(self._channel)

    @functools.cached_property
    def payloads(self) -> clients.PayloadClient:
        return clients.PayloadClient(self._channel)

    @functools.cached_property
    def events(self) -> clients.EventLogClient:
        return clients.EventLogClient(self._channel)

    @functools.cached_property
    def evidence(self) -> clients.EvidenceClient:
        return clients.EvidenceClient(self._channel)

    @functools.cached_property
    def credentials(self) -> clients.CredentialClient:
        return clients.CredentialClient(self._channel)

    @functools.cached_property
    def why(self) -> clients.WhyClient:
        return clients.WhyClient(self._channel)

    @functools.cached_property
    def replay(self) -> clients.ReplayClient:
        return clients.ReplayClient(self._channel)

    @functools.cached_property
    def workers(self) -> clients.WorkerClient:
        return clients.WorkerClient(self._channel)

    @functools.cached_property
    def shards(self) -> clients.ShardClient:
        return clients.ShardClient(self._channel)


def takes_server(command: Command) -> Command:
    """Adds the options that name a server; the command gets a `find_server` to call when it is sure of itself."""

    @click.option("--address", envvar=ADDRESS_VARIABLE, show_envvar=True, metavar="HOST:PORT", help=_ADDRESS_HELP)
    @click.option("--token", envvar=TOKEN_VARIABLE, show_envvar=True, metavar="TOKEN", help=_WHO_HELP)
    @functools.wraps(command)
    def with_server(*args: Any, address: str | None, token: str | None, **kwargs: Any) -> Any:
        def find_server() -> Server:
            return locate_server(address=address, token=token, env=os.environ, working_directory=Path.cwd())

        return command(*args, find_server=find_server, **kwargs)

    return with_server  # type: ignore[return-value]  # click reads its options, not its signature


_ADDRESS_HELP = "gRPC address of api; https://HOST:PORT for TLS [default: the stack of this machine]."
_WHO_HELP = "Who you are there; better in a file named by NOETL_TOKEN_FILE, which nobody sees in `ps`."


def locate_server(*, address: str | None, token: str | None, env: Mapping[str, str], working_directory: Path) -> Server:
    """The server that was named, else the stack of this machine; raises NoServer with what to do."""
    known_token = token or _token_from_file(env)
    if address:
        return _named(address, known_token)
    home = StackHome.locate(env, working_directory=working_directory)
    endpoint = LocalEndpoint.of_running_stack(home)
    if endpoint is None:
        raise NoServer(
            f"no NoETL runs in {home.root}\n"
            f"start one with: noetl dev up\n"
            f"or name a server with --address or {ADDRESS_VARIABLE}"
        )
    return Server(address=endpoint.address, token=known_token or endpoint.token)


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Clients]:
    """Clients on one channel; a failure to reach the server says which one it was."""
    channel = open_channel(
        server.address,
        token=server.token,
        retryable_methods=IDEMPOTENT_METHODS,
        credentials=grpc.ssl_channel_credentials() if server.tls else None,
    )
    async with channel:
        try:
            yield Clients(channel)
        except Unavailable as exc:
            exc.add_note(f"while talking to {server.address}")
            raise


def _named(address: str, token: str | None) -> Server:
    tls = address.startswith(_TLS_SCHEMES)
    for scheme in (*_TLS_SCHEMES, *_PLAIN_SCHEMES):
        address = address.removeprefix(scheme)
    address = address.rstrip("/")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidInput(f"an address is HOST:PORT, such as 127.0.0.1:7100, not {address!r}")
    return Server(address=address, token=token, tls=tls)


def _token_from_file(env: Mapping[str, str]) -> str | None:
    file = env.get(TOKEN_FILE_VARIABLE)
    if not file:
        return None
    try:
        return Path(file).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{TOKEN_FILE_VARIABLE} names {file!r}, which cannot be read: {exc}") from exc
