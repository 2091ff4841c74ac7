"""Plain requests, written and read on aiohttp's own connections without the objects that it makes for each of them.

Its connections, its parser and its pool are the client; what lies above them (a request, a response and a writer with
places for all that HTTP can do) took as long as the rest of a row. Requests that need more than one write go that way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import aiohttp
from aiohttp.connector import Connection
from multidict import CIMultiDict, CIMultiDictProxy

from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_request import HttpRequest

USER_AGENT: Final = "noetl-worker"
HEAD_BYTES: Final = 100_000
"""Of one line of a response; more is no response."""
MAX_HEADERS: Final = 1000
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
    host: str
    bare_head: str
    """What follows on the target of a request that has neither headers of its own nor a body."""


class PlainExchanges:
    """On the connections of one session."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        if session.connector is None:
            raise AssertionError("a session without connections")
        self._connector = session.connector
        self._places: dict[tuple[str, str], _Place] = {}

    @staticmethod
    def takes(request: HttpRequest, headers: CIMultiDict[str]) -> bool:
        """Whether a request is plain, if no proxy is in between: written at once, without waiting for a permission."""
        return (request.content is None or len(request.content) <= PLAIN_BODY_BYTES) and "Expect" not in headers

    async def ask(self, request: HttpRequest, headers: CIMultiDict[str]) -> Answered:
        """Send a request once; raises errors of aiohttp and of sockets, and ValueError for what cannot be written."""
        place = self._place(request.url)
        data = _written(request, headers, place)
        connection = await self._connector.connect(place.described, [], _NO_LIMITS)
        try:
            protocol = connection.protocol
            transport = connection.transport
            if protocol is None or transport is None or transport.is_closing():
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(
                skip_payload=request.method == "HEAD",
                read_until_eof=True,
                max_line_size=HEAD_BYTES,
                max_field_size=HEAD_BYTES,
                max_headers=MAX_HEADERS,
            )
            transport.write(data)
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
        self._places[key] = place = _Place(described=described, host=host, bare_head=f"{head}\r\n")
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
