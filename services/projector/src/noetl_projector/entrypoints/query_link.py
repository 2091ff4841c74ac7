"""Between the process that writes rows and the one that answers queries: lines of JSON over a pair of sockets.

The writer says what it owns, and what it has written while somebody waits for that; the answerer where it listens,
what it has counted, whether somebody waits, and why it could not start. Nothing depends on what is said: who misses it
looks at the rows a moment later.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, Final

MAX_BEHIND_BYTES: Final = 1024 * 1024
"""Of what the other end has not taken; beyond that rows are not announced, and whoever waits looks by himself."""
MAX_LINE_BYTES: Final = 16 * 1024 * 1024


class Link:
    """One end. Sending never waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Link:
        """The end that this process has."""
        return cls(*await asyncio.open_connection(sock=end, limit=MAX_LINE_BYTES))

    def send(self, message: Mapping[str, Any]) -> bool:
        """Whether it is on its way."""
        if self._writer.is_closing() or self._writer.transport.get_write_buffer_size() > MAX_BEHIND_BYTES:
            return False
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        return True

    async def messages(self) -> AsyncIterator[Mapping[str, Any]]:
        """What the other end says, until it is gone."""
        while True:
            try:
                line = await self._reader.readline()
            except (ConnectionError, ValueError):
                return
            if not line.endswith(b"\n"):
                return
            yield json.loads(line)

    def close(self) -> None:
        """The other end notices."""
        self._writer.close()


class ToldRows:
    """Tells the answering process what was written, once for all that is written together."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._is_wanted = False
        self._written: list[str] = []

    def attach(self, link: Link | None) -> None:
        """From now on over this link; over none while there is nobody who answers."""
        self._link = link
        self._is_wanted = False
        self._written = []

    def heed(self, message: Mapping[str, Any]) -> None:
        """Whether somebody waits for rows. What was written before we heard of it he finds when he looks again."""
        if "waits" in message:
            self._is_wanted = bool(message["waits"])
            if self._is_wanted and self._link is not None:
                self._link.send({"look": True})

    def announce(self, execution_id: int) -> None:
        """A row was written."""
        if not self._is_wanted:
            return
        if not self._written:
            asyncio.get_running_loop().call_soon(self._flush)
        self._written.append(str(execution_id))

    def state(self, *, owned: Collection[int], quarantined: Collection[int]) -> None:
        """What this process owns, and what it has set aside."""
        if self._link is not None:
            self._link.send({"owned": sorted(owned), "quarantined": [str(one) for one in quarantined]})

    def _flush(self) -> None:
        written, self._written = self._written, []
        if self._link is not None and written:
            self._link.send({"written": written})


class HeardState:
    """What the answering process has heard of the one that writes."""

    def __init__(self, announce: Callable[[int], None], announce_all: Callable[[], None]) -> None:
        self._announce = announce
        self._announce_all = announce_all
        self._owned: frozenset[int] = frozenset()
        self._quarantined: frozenset[int] = frozenset()

    def owns(self, shard: int) -> bool:
        """Whether rows of this shard are announced here."""
        return shard in self._owned

    def is_quarantined(self, execution_id: int) -> bool:
        """Whether nobody needs to wait for it."""
        return execution_id in self._quarantined

    def hear(self, message: Mapping[str, Any]) -> None:
        """One message of the writer."""
        for execution_id in message.get("written", ()):
            self._announce(int(execution_id))
        if "look" in message:
            self._announce_all()
        if "owned" in message:
            self._owned = frozenset(message["owned"])
            self._quarantined = frozenset(int(one) for one in message["quarantined"])
