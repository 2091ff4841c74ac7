"""Connections of aiohttp whose answers are read at once where they come in one piece, and by its parser where not."""

from __future__ import annotations

import asyncio
import functools
import select
import ssl
from typing import Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.helpers import _EXC_SENTINEL
from aiohttp.tracing import Trace

from noetl_worker.tools.http_whole_answer import END_OF_HEAD, AnswerHead, WholeAnswer, answer_head

HEAD_BYTES: Final = 100_000
"""Of one line of a response; more is no response."""
MAX_HEADERS: Final = 1000


class AnsweredConnection(ResponseHandler):
    """One connection. What its parser would have had to say of a usual answer is known without it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._asking: asyncio.Future[WholeAnswer | None] | None = None
        self._last_head: tuple[bytes, AnswerHead] | None = None
        """Servers say much the same with every answer; kept for as long as the connection."""
        self._watch: select.poll | None = None
        self._tls: ssl.SSLObject | None = None

    def ask(self, written: bytes, *, has_body: bool) -> asyncio.Future[WholeAnswer | None]:
        """Send a request; nothing comes back if the answer, or why there is none, is for `read`."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ServerDisconnectedError
        asking: asyncio.Future[WholeAnswer | None] = self._loop.create_future()
        if has_body and not self._tail:
            self._asking = asking
        else:  # what has come already, from a server that has no time for requests, is for the parser
            self._read_as_always(has_body=has_body)
            asking.set_result(None)
        transport.write(written)
        return asking

    def data_received(self, data: bytes) -> None:
        """The first piece of an answer is all of it, or for the parser with all that follows."""
        asking = self._asking
        if asking is None:
            super().data_received(data)
            return
        self._asking = None
        whole = self._whole(data)
        if whole is None:
            self._read_as_always(has_body=True)
            super().data_received(data)
        if not asking.done():
            asking.set_result(whole)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Whoever reads is told why."""
        asking, self._asking = self._asking, None
        super().connection_lost(exc)
        if asking is not None and not asking.done():
            asking.set_result(None)

    def set_exception(self, exc: BaseException, exc_cause: BaseException = _EXC_SENTINEL) -> None:
        """Whoever reads it later has its cause as well, as whoever waits for it now."""
        if exc_cause is not _EXC_SENTINEL:
            exc.__cause__ = exc_cause
        super().set_exception(exc, exc_cause)

    @property
    def is_quiet(self) -> bool:
        """Whether the server has neither hung up nor spoken since its last answer.

        The event loop may have had no time yet to read either, so the socket itself is asked.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self.should_close:  # something that was read waits in there
            return False
        if self._watch is None:
            self._watch = select.poll()
            self._watch.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
            self._tls = transport.get_extra_info("ssl_object")
        if self._tls is not None and self._tls.pending():
            return False
        return not self._watch.poll(0)

    def _whole(self, data: bytes) -> WholeAnswer | None:
        end = data.find(END_OF_HEAD)
        if end < 0:
            return None
        written, content = data[:end], data[end + len(END_OF_HEAD) :]
        if self._last_head is not None and self._last_head[0] == written:
            head = self._last_head[1]
        else:
            read = answer_head(written)
            if read is None:
                return None
            self._last_head = written, (head := read)
        return WholeAnswer(head, content) if len(content) == head.length else None

    def _read_as_always(self, *, has_body: bool) -> None:
        self.set_response_params(
            skip_payload=not has_body,
            read_until_eof=True,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
            max_headers=MAX_HEADERS,
        )


def _connection(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return AnsweredConnection(loop)


class QuietConnections(aiohttp.TCPConnector):
    """A pool that gives away no idle connection on which the server has hung up, or spoken without being asked.

    A request on the one would be lost, and the other would answer it with something else.
    """

    def __init__(self, *, context: ssl.SSLContext, limit: int, idle_seconds: float) -> None:
        super().__init__(ssl=context, limit=limit, keepalive_timeout=idle_seconds, use_dns_cache=False)
        self._factory = functools.partial(_connection, loop=self._loop)

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody has to wait for a connection, because there are as many as there may be."""
        return bool(self._waiters)

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            if isinstance(connection.protocol, AnsweredConnection) and connection.protocol.is_quiet:
                return connection
            connection.close()
        return None
