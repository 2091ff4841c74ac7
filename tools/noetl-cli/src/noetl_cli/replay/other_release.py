"""Asks other code what it makes of a history: another release, or the code of this program."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import noetl_core
from noetl_core.errors import NoetlError
from noetl_core.upcasting.releases import UPCASTERS
from noetl_servicekit.code_version import code_version

import noetl_cli
from noetl_cli.replay.fold_lines import documents

_LONGEST_ANSWER: Final = 2**24
_ENDED: Final = "the process of the other release has ended"

_PROGRAM: Final = """\
import json, runpy, noetl_cli, noetl_core
from noetl_core.upcasting.releases import UPCASTERS
try:
    from noetl_servicekit.code_version import code_version
    told = code_version()
except ImportError:
    told = ""
places = {"noetl_core": noetl_core.__file__, "noetl_cli": noetl_cli.__file__}
print(json.dumps({"code_version": told, "upcasters": UPCASTERS.digest, "places": places}), flush=True)
runpy.run_module("noetl_cli.replay.fold_lines", run_name="__main__", alter_sys=True)
"""
"""Ours, so that any release can be asked: says what is imported over there, and then folds with it."""


class NoOtherRelease(NoetlError):
    """There is no other release to ask; what its program said stands above."""

    code = "replay.other_release_failed"


class FoldFailed(NoetlError):
    """The other release gave no answer to one history; what it said last stands above."""

    code = "replay.not_folded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Which code folds; without it nobody could tell a release that stays the same from one that was not asked."""

    code_version: str
    """Empty if that release does not say."""
    upcasters: str
    places: Mapping[str, str]
    """Where its packages were imported from."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {"code_version": self.code_version or None, "upcasters": self.upcasters, "places": {**self.places}}

    def is_below(self, entries: Sequence[Path]) -> bool:
        """Whether any of its packages was imported from one of these entries of a PYTHONPATH."""
        return any(Path(place).is_relative_to(entry) for place in self.places.values() for entry in entries)


class Folding(Protocol):
    """Other code: takes the lines of a history, gives its checksum document."""

    async def code(self) -> Code:
        """Which code it is."""
        ...

    async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """One history; raises `FoldFailed` if it gets no answer, after which others can be asked about."""
        ...


class FoldHere:
    """The code of this very program."""

    async def code(self) -> Code:
        """What this program has imported."""
        return Code(
            code_version=code_version(),
            upcasters=UPCASTERS.digest,
            places={"noetl_core": str(noetl_core.__file__), "noetl_cli": str(noetl_cli.__file__)},
        )

    async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """One history; it is in memory here, as its rows are."""
        return next(iter(documents([*[line async for line in lines], b""])))


class FoldThere:
    """Another release, in a process that imports it."""

    def __init__(self, *, path: str | None, python: str | None) -> None:
        self._python = sys.executable if python is None else python
        self._entries = None if path is None else [Path(entry).resolve() for entry in path.split(os.pathsep) if entry]
        self._process: asyncio.subprocess.Process | None = None
        self._code: Code | None = None

    async def code(self) -> Code:
        """What its process has imported."""
        return self._code or (await self.start())[1]

    async def start(self) -> tuple[asyncio.subprocess.Process, Code]:
        """A process that answers, and what it folds with; raises `NoOtherRelease` if there can be none."""
        environment = self._environment()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                self._python,
                "-P",  # what happens to lie in the current directory is not what was asked for
                "-c",
                _PROGRAM,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                limit=_LONGEST_ANSWER,
            )
        except OSError as exc:
            raise NoOtherRelease(f"{self._python!r} cannot be started: {exc}") from exc
        try:
            code = _code(await _answer(process))
            # A history without events: every release has an answer to it.
            await _ask(process, _nothing())
        except FoldFailed as exc:
            raise NoOtherRelease(f"{exc.message}; does it have `noetl replay`?") from exc
        if self._entries is not None and not code.is_below(self._entries):
            found = ", ".join(f"{name} from {place}" for name, place in code.places.items())
            where = os.pathsep.join(map(str, self._entries))
            raise NoOtherRelease(f"nothing of NoETL lies in {where}: it would be {found}")
        self._code = code
        return process, code

    def _environment(self) -> dict[str, str]:
        """Without our own PYTHONPATH: it would put the code of this program before that of the other release."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if self._entries is None:
            return environment
        if not self._entries:
            raise NoOtherRelease("the PYTHONPATH of the other release is empty")
        if absent := [entry for entry in self._entries if not entry.exists()]:
            raise NoOtherRelease(f"{', '.join(map(str, absent))} of the other release's PYTHONPATH does not exist")
        return {**environment, "PYTHONPATH": os.pathsep.join(map(str, self._entries))}

    async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """One history, line by line, as fast as the other side reads."""
        process = self._process or (await self.start())[0]
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
async def folding_with(*, path: str | None, python: str | None) -> AsyncIterator[Folding]:
    """Code from a PYTHONPATH or an interpreter of its own; without either, this program's."""
    if path is None and python is None:
        yield FoldHere()
        return
    there = FoldThere(path=path, python=python)
    try:
        await there.start()
        yield there
    finally:
        await there.stop()


async def _ask(process: asyncio.subprocess.Process, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
    stdin = process.stdin
    if stdin is None:
        raise FoldFailed("the process of the other release has no pipes")
    try:
        async for line in lines:
            stdin.write(line + b"\n")
            await stdin.drain()
        stdin.write(b"\n")
        await stdin.drain()
    except (BrokenPipeError, ConnectionResetError) as exc:
        raise FoldFailed(_ENDED) from exc
    return await _answer(process)


async def _answer(process: asyncio.subprocess.Process) -> Mapping[str, Any]:
    if process.stdout is None:
        raise FoldFailed("the process of the other release has no pipes")
    try:
        answer = await process.stdout.readline()
    except ConnectionResetError as exc:
        raise FoldFailed(_ENDED) from exc
    if not answer:
        raise FoldFailed(_ENDED)
    try:
        document = json.loads(answer)
    except ValueError as exc:
        raise FoldFailed(f"the other release answers with {answer[:60]!r}, which is no document") from exc
    if not isinstance(document, dict):
        raise FoldFailed(f"the other release answers with {answer[:60]!r}, which is no document")
    return document


def _code(told: Mapping[str, Any]) -> Code:
    places = told.get("places")
    if not isinstance(places, dict):
        raise FoldFailed("the other release does not say where it was imported from")
    return Code(
        code_version=str(told.get("code_version")),
        upcasters=str(told.get("upcasters")),
        places={str(name): str(place) for name, place in places.items()},
    )


async def _nothing() -> AsyncIterator[bytes]:
    lines: tuple[bytes, ...] = ()
    for line in lines:
        yield line
