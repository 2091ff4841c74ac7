"""Plain requests, written and read on aiohttp's own connections without the objects that it makes for each of them.

Its connections, its parser and its pool are the client; what lies above them (a request, a response and a writer with
places for all that HTTP can do) took as long as the rest of a row. Requests that need more than one write go that way.

A connection that has just answered is left to the next request to its server, for a moment, without going through the
pool. Whoever needs another connection, or waits for one, finds all of them in the pool (ADR 0078).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import aiohttp
from aiohttp.connector import Connection
from multidict import CIMultiDict, CIMultiDictProxy

from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_connections import AnsweredConnection, QuietConnections
from noetl_worker.tools.http_request import HttpRequest
from noetl_worker.tools.http_whole_answer import WholeAnswer

USER_AGENT: Final = "noetl-worker"
LEFT_SECONDS: Final = 0.1
"""For how long connections are kept from the pool."""
PLAIN_BODY_BYTES: Final = 1024 * 1024
"""Larger ones are written piece by piece, which is not plain."""

_MAX_PLACES = 1000
_NO_LIMITS = aiohttp.ClientTimeout(total=None, sock_connect=None)
"""Whoever asks has a limit around it all."""
_OWN_HEADERS = {"User-Agent": USER_AGENT}
_DEFAULT_HEADERS = {str(name): value for name, value in aiohttp.ClientRequest.DEFAULT_HEADERS.items()}
_WITHOUT_LENGTH = frozenset(str(method) for method in aiohttp.ClientRequest.GET_METHODS)


class Answered(NamedTuple):
    """A response whose body is still to be read."""

    status_code: int
    reason: str
    headers: CIMultiDictProxy[str]
    raw_headers: tuple[tuple[bytes, bytes], ...]
    content: aiohttp.StreamReader
    close: Callable[[], None]
    """The connection is for others if the body was read to its end, and for nobody if not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A server as the pool of connections wants it described, and what every request to it says."""

    described: aiohttp.ClientRequest
    origin: str
    host: str
    bare_head: str
    """What follows on the target of a request that has neither headers of its own nor a body."""


class PlainExchanges:
    """On the connections of one pool."""

    def __init__(self, connections: QuietConnections) -> None:
        self._connections = connections
        self._places: dict[tuple[str, str], _Place] = {}
        self._left: dict[str, list[Connection]] = {}
        """Those that the pool takes for used, by the server that has just answered on them."""
        self._giving_back: asyncio.TimerHandle | None = None

    @staticmethod
    def takes(request: HttpRequest, headers: CIMultiDict[str]) -> bool:
        """Whether a request is plain, if no proxy is in between: written at once, without waiting for a permission."""
        return (request.content is None or len(request.content) <= PLAIN_BODY_BYTES) and "Expect" not in headers

    async def ask(self, request: HttpRequest, headers: CIMultiDict[str]) -> Answered | WholeAnswer:
        """Send a request once; raises errors of aiohttp and of sockets, and ValueError for what cannot be written."""
        place = self._place(request.url)
        data = _written(request, headers, place)
        connection = self._left_one(place.origin) if self._left else None
        if connection is None:
            self.give_back()  # before one more is opened, or waited for
            connection = await self._connections.connect(place.described, [], _NO_LIMITS)
        try:
            protocol = connection.protocol
            if not isinstance(protocol, AnsweredConnection):
                raise aiohttp.ServerDisconnectedError
            whole = await protocol.ask(data, has_body=request.method != "HEAD")
            if whole is not None:
                if not self._leave(place.origin, connection):
                    await asyncio.sleep(0)  # whoever waits for a connection has it before we ask for the next one
                return whole
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != 101:  # what is said before the response
                message, content = await protocol.read()
        except BaseException:
            connection.close()
            raise
        content.on_eof(_Release(connection))
        return Answered(
            status_code=message.code,
            reason=message.reason,
            headers=message.headers,
            raw_headers=message.raw_headers,
            content=content,
            close=connection.close,
        )

    def give_back(self) -> None:
        """All connections are in the pool, or used."""
        left, self._left = self._left, {}
        for connections in left.values():
            for connection in connections:
                connection.release()

    def close(self) -> None:
        """Nothing is left, and nothing is to be done any more."""
        self.give_back()
        if self._giving_back is not None:
            self._giving_back.cancel()

    def _leave(self, origin: str, connection: Connection) -> bool:
        """To the next request to this server; where it has answered before it was told all, to nobody.

        False if somebody else waits for a connection.
        """
        transport = connection.transport
        is_waited_for = self._connections.is_waited_for
        if transport is None or transport.get_write_buffer_size():
            connection.close()
        elif is_waited_for or self._connections.closed:
            connection.release()
        else:
            self._left.setdefault(origin, []).append(connection)
            if self._giving_back is None:
                self._giving_back = asyncio.get_running_loop().call_later(LEFT_SECONDS, self._give_back_in_time)
        return not is_waited_for

    def _give_back_in_time(self) -> None:
        """Those that are in use will be left again."""
        self._giving_back = None
        self.give_back()

    def _left_one(self, origin: str) -> Connection | None:
        while known := self._left.get(origin):
            connection = known.pop()
            if not known:
                del self._left[origin]
            if isinstance(connection.protocol, AnsweredConnection) and connection.protocol.is_quiet:
                return connection
            connection.close()
        return None

    def _place(self, address: HttpAddress) -> _Place:
        key = address.scheme, address.authority
        known = self._places.get(key)
        if known is not None:
            return known
        described = aiohttp.ClientRequest("GET", address.origin_sent)
        host = address.host_header if "%" in address.host else described.headers["Host"]
        head = _head(host, {**_OWN_HEADERS, **_DEFAULT_HEADERS})
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        self._places[key] = place = _Place(
            described=described, origin=str(address.origin_sent), host=host, bare_head=f"{head}\r\n"
        )
        return place


class _Release:
    """At the end of a body its connection is for others, unless the server has answered before it was told all."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self) -> None:
        connection = self._connection
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or protocol.upgraded:
            return
        if transport is not None and transport.get_write_buffer_size():
            connection.close()
        else:
            connection.release()


def _written(request: HttpRequest, headers: CIMultiDict[str], place: _Place) -> bytes:
    """All of a request; names and values of headers have been looked at before."""
    method, content = request.method, request.content
    begin = f"{method} {request.url.target}"
    if not headers and content is None and method in _WITHOUT_LENGTH:
        return f"{begin}{place.bare_head}".encode()
    own = _OWN_HEADERS if "User-Agent" not in headers else {}
    lines = [begin, _head(headers.pop("Host", place.host), own)]
    lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
    lines += [f"{name}: {value}\r\n" for name, value in _DEFAULT_HEADERS.items() if name not in headers]
    if content is not None or method not in _WITHOUT_LENGTH:
        lines.append(f"Content-Length: {len(content or b'')}\r\n")
    return "".join((*lines, "\r\n")).encode() + (content or b"")


def _head(host: str, more: dict[str, str]) -> str:
    lines = "".join(f"{name}: {value}\r\n" for name, value in more.items())
    return f" HTTP/1.1\r\nHost: {host}\r\n{lines}"
