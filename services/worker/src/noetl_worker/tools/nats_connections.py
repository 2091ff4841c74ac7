"""The worker's connections to the NATS servers of users: one per credential and organization, closed when unused."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
import multidict
from nats import errors
from nats.aio import transport
from nats.aio.client import Client
from noetl_core.ports.upkeep import Upkeep

from noetl_worker.application.credentials import Credential
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import CallFailed, failed
from noetl_worker.tools.python_pool import Owner
from noetl_worker.tools.shared_resources import SharedResources, SharingLimits

CLIENT_NAME = "noetl-worker"

# The adapters load the client without what WebSockets need (`noetl_adapters.nats`); servers of users may listen there.
vars(transport).update(aiohttp=aiohttp, multidict=multidict)

_CLOSE_SECONDS = 2.0
_URL_FIELDS = ("nats_url", "url", "servers", "server")
_USER_FIELDS = ("user", "username", "nats_user")
_PASSWORD_FIELDS = ("password", "nats_password")
_TOKEN_FIELDS = ("token", "nats_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsLimits:
    """How many connections there may be, and what one answer may bring."""

    connect_seconds: float = 5.0
    max_value_bytes: int = 64 * 1024 * 1024
    max_names: int = 100_000
    """Keys or objects that one call lists."""
    sharing: SharingLimits = field(default_factory=SharingLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsTarget:
    """Everything that a connection needs; equal targets of one owner share it."""

    owner: Owner
    servers: tuple[str, ...] = field(repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


class NatsConnections:
    """Lends connections; one that is lost is replaced when it is next needed."""

    def __init__(self, limits: NatsLimits | None = None) -> None:
        self.limits = limits or NatsLimits()
        self._shared: SharedResources[NatsTarget, Client] = SharedResources(
            limits=self.limits.sharing, close=_close, is_usable=lambda client: client.is_connected
        )

    async def __aenter__(self) -> Self:
        """Nothing is opened yet."""
        await self._shared.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection, also those in use."""
        await self._shared.__aexit__(kind, error, trace)

    @property
    def upkeep(self) -> Upkeep:
        """What has to be done while it is open."""
        return self._shared.upkeep("nats-connections")

    @property
    def open_count(self) -> int:
        """How many there are."""
        return self._shared.open_count

    @asynccontextmanager
    async def connection(self, target: NatsTarget) -> AsyncIterator[Client]:
        """The connection of a target; raises what connecting raises."""
        async with self._shared.use(target, lambda: self._open(target)) as client:
            yield client

    async def _open(self, target: NatsTarget) -> Client:
        reasons: list[Exception] = []

        async def remember(error: Exception) -> None:
            """Never logged: the library's own line might show an address with its password."""
            reasons[:] = [error]

        client = Client()
        try:
            await client.connect(
                list(target.servers),
                name=CLIENT_NAME,
                user=target.user,
                password=target.password,
                token=target.token,
                connect_timeout=math.ceil(self.limits.connect_seconds),
                # A call learns at once that the server is away; whether to try again is for its policy to say.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=remember,
            )
        except BaseException as exc:
            await _close(client)
            if isinstance(exc, errors.NoServersError) and reasons:
                raise reasons[0] from exc  # why none of them could be reached
            raise
        return client


def nats_target(credential: Credential, owner: Owner) -> NatsTarget:
    """The servers of a credential and how to be let in."""
    servers: list[str] = []
    for name in _URL_FIELDS:
        value = credential.data.get(name)
        written = value if isinstance(value, list) else str(value).split(",") if value else []
        servers += [str(server).strip() for server in written if str(server).strip()]
    if not servers and credential.data.get("host"):
        servers = [f"nats://{credential.data['host']}:{credential.data.get('port') or 4222}"]
    if not servers:
        raise _unfit(credential, "has no nats_url")
    return NatsTarget(
        owner=owner,
        servers=tuple(servers),
        user=_field(credential, _USER_FIELDS),
        password=_field(credential, _PASSWORD_FIELDS),
        token=_field(credential, _TOKEN_FIELDS),
    )


def _field(credential: Credential, names: tuple[str, ...]) -> str | None:
    return next((str(credential.data[name]) for name in names if credential.data.get(name) not in (None, "")), None)


async def _close(client: Client) -> None:
    with contextlib.suppress(errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()


def _unfit(credential: Credential, problem: str) -> CallFailed:
    return failed(ErrorKind.AUTH, "CREDENTIAL_UNFIT", f"the credential {credential.name!r} {problem}")
