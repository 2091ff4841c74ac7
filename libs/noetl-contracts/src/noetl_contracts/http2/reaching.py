"""Reaching a server that may have several addresses: whichever answers first, and nobody waits long for the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from noetl_contracts.http2.client_connection import ClientConnection

NEXT_AFTER_SECONDS: Final = 0.25
"""An address that says nothing for so long is given competition (RFC 8305)."""

Address = tuple[str, int]
Connect = Callable[[Address], Awaitable[ClientConnection]]


async def addresses_of(host: str, port: int) -> Sequence[Address]:
    """Each once, in the order in which the system prefers them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(address[0]), int(address[1])) for *_, address in found))


async def first_to_answer(addresses: Sequence[Address], connect: Connect) -> ClientConnection:
    """The others are left; raises what the last one failed with if all do."""
    waiting = list(addresses)
    trying: set[asyncio.Future[ClientConnection]] = set()
    error: BaseException = OSError("it has no address")
    try:
        while waiting or trying:
            if waiting:
                trying.add(asyncio.ensure_future(connect(waiting.pop(0))))
            done, _ = await asyncio.wait(
                trying, timeout=NEXT_AFTER_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for one in done:
                trying.discard(one)
                failed = one.exception()
                if failed is None:
                    return one.result()
                error = failed
    finally:
        for one in trying:
            one.cancel()
        for late in await asyncio.gather(*trying, return_exceptions=True):
            if isinstance(late, ClientConnection):
                late.abort("another address answered first")
    raise error
