"""Asks other code what it makes of a history: another release, or the code of this program."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from noetl_core.errors import NoetlError

from noetl_cli.replay.fold_lines import documents

_LONGEST_ANSWER: Final = 2**24


class NoOtherRelease(NoetlError):
    """There is no other release to ask; what its program said stands above."""

    code = "replay.other_release_failed"


class FoldFailed(NoetlError):
    """The other release gave no answer to one history; what it said last stands above."""

    code = "replay.not_folded"


class Folding(Protocol):
    """Other code: takes the lines of a history, gives its checksum document."""

    async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """One history; raises `FoldFailed` if it gets no answer, after which others can be asked about."""
        ...


class FoldHere:
    """The code of this very program."""

    async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """One history; it is in memory here, as its rows are."""
        return next(iter(documents([*[line async for line in lines], b""])))


class FoldThere:
    """Another release, in a process that imports it."""

    def __init__(self, *, path: str, python: str) -> None:
        self._python = python or sys.executable
        self._environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        """A process that answers; raises `NoOtherRelease` if there can be none."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                self._python,
                "-m",
                "noetl_cli.replay.fold_lines",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=_LONGEST_ANSWER,
            )
        except OSError as exc:
            raise NoOtherRelease(f"{self._python!r} cannot be started: {exc}") from exc
        try:
            # A history without events: every release has an answer to it.
            await _ask(self._process, _nothing())
        except FoldFailed as exc:
            raise NoOtherRelease(f"{exc.message}; does it have `noetl replay`?") from exc
        return self._process

    async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """One history, line by line, as fast as the other side reads."""
        process = self._process or await self.start()
        try:
            return await _ask(process, lines)
        except BaseException:
            # It is gone, or holds half a history, which the next one must not be added to.
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def folding_with(*, path: str, python: str) -> AsyncIterator[Folding]:
    """Code from a PYTHONPATH or an interpreter of its own; without either, this program's."""
    if not path and not python:
        yield FoldHere()
        return
    there = FoldThere(path=path, python=python)
    try:
        await there.start()
        yield there
    finally:
        await there.stop()


async def _ask(process: asyncio.subprocess.Process, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise FoldFailed("the process of the other release has no pipes")
    try:
        async for line in lines:
            stdin.write(line + b"\n")
            await stdin.drain()
        stdin.write(b"\n")
        await stdin.drain()
        answer = await stdout.readline()
    except (BrokenPipeError, ConnectionResetError):
        answer = b""
    if not answer:
        raise FoldFailed("the process of the other release has ended")
    try:
        document = json.loads(answer)
    except ValueError as exc:
        raise FoldFailed(f"the other release answers with {answer[:60]!r}, which is no document") from exc
    if not isinstance(document, dict):
        raise FoldFailed(f"the other release answers with {answer[:60]!r}, which is no document")
    return document


async def _nothing() -> AsyncIterator[bytes]:
    lines: tuple[bytes, ...] = ()
    for line in lines:
        yield line
