"""How a connection to NATS comes about: an address of several, what the server says first, TLS, and who we are."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, cast
from urllib.parse import SplitResult, urlsplit

from noetl_core.errors import Unavailable

from noetl_adapters.nats.client import NatsClient

CONNECT_TIMEOUT_SECONDS: Final = 2.0
_DEFAULT_PORT: Final = 4222
_SCHEMES: Final = ("nats", "tls")


async def dial(
    servers: Sequence[str],
    *,
    name: str,
    token: str | None,
    on_error: Callable[[str], None],
) -> NatsClient:
    """A client of the first server that takes us, in any order; raises what the last one failed with."""
    failure: Exception = Unavailable("no server of NATS was named")
    for server in random.sample(servers, len(servers)):
        client = NatsClient(on_error=on_error)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                await _reach(client, _address(server), name=name, token=token)
        except (OSError, ValueError, Unavailable) as exc:  # a timeout and TLS are the first
            await client.close(timeout_seconds=0)
            failure = exc
        except BaseException:
            await client.close(timeout_seconds=0)
            raise
        else:
            return client
    raise failure


def _address(server: str) -> SplitResult:
    address = urlsplit(server if "://" in server else f"nats://{server}")
    if address.scheme not in _SCHEMES or not address.hostname:
        raise ValueError(f"an address of NATS begins with {' or '.join(_SCHEMES)} and names a host")
    return address


async def _reach(client: NatsClient, address: SplitResult, *, name: str, token: str | None) -> None:
    loop = asyncio.get_running_loop()
    host, port = address.hostname or "", address.port or _DEFAULT_PORT
    transport, _ = await loop.create_connection(lambda: client, host, port)
    info = await client.greeted
    if address.scheme == "tls" or info.get("tls_required"):
        safe = await loop.start_tls(transport, client, ssl.create_default_context(), server_hostname=host)
        transport = cast(asyncio.Transport, safe)
    client.address = f"{host}:{port}"
    await client.introduce(_options(address, name=name, token=token), transport=transport)


def _options(address: SplitResult, *, name: str, token: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
        "lang": "python3",
        "version": "noetl",
        "protocol": 1,
        "headers": True,
        "no_responders": True,
        "echo": True,
        "name": name,
    }
    if token is not None:
        options["auth_token"] = token
    elif address.username is not None and address.password is not None:
        options |= {"user": address.username, "pass": address.password}
    elif address.username is not None:
        options["auth_token"] = address.username
    return options
