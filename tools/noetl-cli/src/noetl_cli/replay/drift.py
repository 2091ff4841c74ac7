"""Compares what the server says of histories with what other code says to the same events."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from noetl_core.errors import NoetlError
from noetl_core.replay.event_lines import event_line
from noetl_core.replay.points import Point
from noetl_core.surfaces.shapes import Surface

from noetl_cli.connection import Clients
from noetl_cli.replay.fold_lines import documents

_PAGE: Final = 500


class FoldFailed(NoetlError):
    """The other release's process is gone; what it said last stands above."""

    code = "replay.other_release_failed"


class Folding(Protocol):
    """Other code: takes the lines of a history, gives its checksum document."""

    async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """One history."""
        ...


class FoldHere:
    """The code of this very program."""

    async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """One history; it is in memory here, as its rows are."""
        return next(iter(documents([*[line async for line in lines], b""])))


class FoldThere:
    """Another release, in a process that imports it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """One history, line by line, as fast as the other side reads."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise FoldFailed("the process of the other release has no pipes")
        try:
            async for line in lines:
                stdin.write(line + b"\n")
                await stdin.drain()
            stdin.write(b"\n")
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as exc:
            raise FoldFailed("the process of the other release has ended; does it have `noetl replay`?") from exc
        answer = await stdout.readline()
        if not answer:
            raise FoldFailed("the process of the other release has ended; does it have `noetl replay`?")
        document: Mapping[str, Any] = json.loads(answer)
        return document


@asynccontextmanager
async def folding_with(*, path: str, python: str) -> AsyncIterator[Folding]:
    """Code from a PYTHONPATH or an interpreter of its own; without either, this program's."""
    if not path and not python:
        yield FoldHere()
        return
    environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
    process = await asyncio.create_subprocess_exec(
        python or sys.executable,
        "-m",
        "noetl_cli.replay.fold_lines",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        limit=2**24,
    )
    try:
        yield FoldThere(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One execution: which surfaces would change, or why nobody can say."""

    execution_id: int
    stream_version: int
    drifted: tuple[str, ...] = ()
    error: str = ""
    formats: tuple[int, int] = (0, 0)
    upcasters: tuple[str, str] = ("", "")

    @property
    def is_same(self) -> bool:
        """Whether the other code says the same."""
        return not self.drifted and not self.error

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "execution_id": str(self.execution_id),
            "stream_version": self.stream_version,
            "drifted": [*self.drifted],
            "error": self.error or None,
            "format": {"server": self.formats[0], "other": self.formats[1]},
            "upcasters": {"server": self.upcasters[0], "other": self.upcasters[1]},
        }


async def compare(clients: Clients, folding: Folding, execution_id: int) -> Compared:
    """The server's own replay of a history beside the other code's, to the same version."""
    recorded = await clients.replay.state(None, execution_id, Point(), projection="none", from_start=True)
    version = recorded.stream_version
    other = await folding.fold(history_lines(clients, execution_id, version))
    if "error" in other:
        return Compared(execution_id=execution_id, stream_version=version, error=str(other["error"]))
    drifted = tuple(str(one) for one in Surface if other["surfaces"].get(one) != recorded.surfaces[one])
    return Compared(
        execution_id=execution_id,
        stream_version=version,
        drifted=drifted,
        formats=(recorded.format, other["format"]),
        upcasters=(recorded.upcasters, other["upcasters"]),
    )


async def history_lines(clients: Clients, execution_id: int, version: int = 0) -> AsyncIterator[bytes]:
    """The events of an execution up to a version, page by page; 0 is its head."""
    following = 1
    while not version or following <= version:
        page = await clients.events.read(None, execution_id, from_version=following, to_version=version, limit=_PAGE)
        version = version or page.head_version
        if not page.events:
            return
        for event in page.events:
            yield event_line(event)
        following += len(page.events)


async def all_executions(clients: Clients, *, limit: int) -> AsyncIterator[int]:
    """Every stream of the tenant, from the log, not from what was made of it."""
    after, left = 0, limit
    while left:
        page = await clients.evidence.list_streams(None, after=after, limit=min(1000, left))
        for head in page.heads:
            yield head.execution_id
        if not page.more or not page.heads:
            return
        after, left = page.heads[-1].execution_id, left - len(page.heads)


async def chosen(ids: Iterable[int]) -> AsyncIterator[int]:
    """Those that were named."""
    for execution_id in ids:
        yield execution_id
