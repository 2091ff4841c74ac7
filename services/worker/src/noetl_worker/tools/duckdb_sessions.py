"""Child processes that hold a DuckDB database for one call each: bounded, kept warm per owner, always killable."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from noetl_core.canonical import JsonValue
from noetl_core.errors import Unavailable

from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import CallFailed, failed
from noetl_worker.tools.python_call import Answered
from noetl_worker.tools.python_pool import PASSED_VARIABLES, Owner
from noetl_worker.tools.python_process import ProcessLimits, PythonProcess
from noetl_worker.tools.python_protocol import Request

_PROGRAM = "from noetl_worker.tools.duckdb_database import perform\nresult = perform(input_data)"
_PARSE_IN_THREAD_CHARACTERS = 256 * 1024
_KINDS = frozenset(kind.value for kind in ErrorKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckdbLimits:
    """What DuckDB may use on this worker."""

    max_sessions: int = 4
    max_idle: int = 2
    """Children that wait, warm, for another call of their owner."""
    max_requests_per_child: int = 5000
    max_rss_bytes: int = 512 * 1024 * 1024
    memory_limit: str = ""
    """Of one database, as DuckDB writes it (`2GB`); without one, DuckDB's own, which is most of the machine."""
    threads: int = 0
    root: Path | None = None
    """Where relative names of database files start; without one, where the worker was started."""
    lock_seconds: float = 15.0
    """How long to wait for a file that another process has open."""
    max_result_bytes: int = 512 * 1024 * 1024
    process: ProcessLimits = field(default_factory=ProcessLimits)


class DuckdbFailed(Exception):
    """DuckDB refused a statement."""

    def __init__(self, *, kind: ErrorKind, code: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Rows of a statement, each a list, and whether there are more; or what it changed."""

    columns: tuple[str, ...] | None = None
    rows: Sequence[Sequence[JsonValue]] = ()
    size: int = 0
    """About how many bytes the rows have."""
    has_more: bool = False
    row_count: int = 0
    message: str = ""


class DuckdbSession:
    """A database in a child process, asked one thing at a time."""

    def __init__(self, child: PythonProcess, request_ids: itertools.count[int], *, max_answer_bytes: int) -> None:
        self._child = child
        self._request_ids = request_ids
        self._max_answer_bytes = max_answer_bytes
        self.is_broken = False
        self.left_transaction_open = False
        """Known when the session has ended: the statements began a transaction, which was undone."""
        self.rss_bytes = 0

    async def open(
        self, *, database: str | None, prepare: Sequence[str], settings: Mapping[str, str], lock_seconds: float
    ) -> None:
        """Open a file, or a database in memory."""
        await self.ask(
            "open",
            database=database,
            prepare=list(prepare),
            settings=dict(settings),
            lock_seconds=lock_seconds,
        )

    async def run(self, statement: str, *, count: int, exact: bool = False) -> Reply:
        """What a statement gave, with its first rows."""
        answer = await self.ask("run", statement=statement, count=count, exact=exact)
        columns = answer["columns"]
        if columns is None:
            return Reply(row_count=answer["row_count"], message=answer["message"])
        return await _with_rows(Reply(columns=tuple(columns)), answer)

    async def more(self, before: Reply, *, count: int) -> Reply:
        """The next rows of the statement that was run last."""
        return await _with_rows(before, await self.ask("more", count=count))

    async def ask(self, operation: str, **arguments: object) -> Any:
        """The answer of the child; raises `DuckdbFailed`. Who is cancelled here leaves a session to be killed."""
        request_id = next(self._request_ids)
        request = Request(
            id=request_id,
            source=_PROGRAM,
            inputs={"operation": operation, "arguments": arguments},
            context={},
            libs={},
            max_result_bytes=self._max_answer_bytes,
        )
        end = await self._child.call(json.dumps(request).encode(), request_id=request_id, timeout_seconds=None)
        if not isinstance(end, Answered):
            self.is_broken = True
            raise failed(ErrorKind.UNKNOWN, "DUCKDB_DIED", "the process that ran DuckDB ended; was memory exhausted?")
        self.rss_bytes = end.answer.rss_bytes
        if end.answer.error is not None:
            self.is_broken = True
            code, message = str(end.answer.error.get("code")), str(end.answer.error.get("message"))
            kind = ErrorKind.STORAGE_QUOTA if code == "RESULT_TOO_LARGE" else ErrorKind.UNKNOWN
            raise failed(kind, code, message)
        match end.answer.data:
            case {"error": {"kind": str(kind_name), "code": str(code), "message": str(message)}}:
                kind = ErrorKind(kind_name) if kind_name in _KINDS else ErrorKind.UNKNOWN
                raise DuckdbFailed(kind=kind, code=code, message=message)
            case {"value": value}:
                return value
            case _:
                self.is_broken = True
                raise failed(ErrorKind.UNKNOWN, "DUCKDB_DIED", "the process that ran DuckDB answered nonsense")


async def _with_rows(reply: Reply, answer: Mapping[str, Any]) -> Reply:
    text: str = answer["rows"]
    # In a thread: parsing megabytes takes long, and leases must be kept up meanwhile.
    rows = await asyncio.to_thread(json.loads, text) if len(text) > _PARSE_IN_THREAD_CHARACTERS else json.loads(text)
    return replace(reply, rows=rows, size=len(text), has_more=answer["has_more"])


class DuckdbSessions:
    """At most `max_sessions` at once; a further call waits."""

    def __init__(
        self, limits: DuckdbLimits | None = None, *, environment: Mapping[str, str], scratch: Path | None = None
    ) -> None:
        self.limits = limits or DuckdbLimits()
        self._environment = {name: environment[name] for name in PASSED_VARIABLES if name in environment}
        self._free_slots = asyncio.Semaphore(self.limits.max_sessions)
        self._idle: list[tuple[Owner, PythonProcess]] = []
        self._alive: set[PythonProcess] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self._request_ids = itertools.count(1)
        self._scratch = scratch
        self._spill = Path()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Make the directory into which large queries spill; no process is started yet."""
        self._spill = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="noetl-duckdb-", dir=self._scratch))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill every child, also those with a query, and wait until all are gone."""
        self._is_closed = True
        for child in tuple(self._alive):
            self._dismiss(child)
        await asyncio.gather(*self._farewells)
        await asyncio.to_thread(shutil.rmtree, self._spill, ignore_errors=True)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The children there are at the moment."""
        return tuple(child.pid for child in self._alive)

    @asynccontextmanager
    async def session(
        self, owner: Owner, *, database: str | None, prepare: Sequence[str] = ()
    ) -> AsyncIterator[DuckdbSession]:
        """An open database for one call; however that ends, the file is let go of."""
        async with self._free_slots:
            child = await self._child_for(owner)
            session = DuckdbSession(child, self._request_ids, max_answer_bytes=self.limits.process.max_result_bytes)
            is_kept = False
            try:
                await session.open(
                    database=self._path(database),
                    prepare=prepare,
                    settings=self._settings(child),
                    lock_seconds=self.limits.lock_seconds,
                )
                yield session
                session.left_transaction_open = await session.ask("close") is True
                is_kept = self._may_serve_again(child, session)
            finally:  # also when cancelled or timed out: whatever runs there ends now
                if is_kept:
                    self._idle.append((owner, child))
                else:
                    self._dismiss(child)
            while len(self._idle) > self.limits.max_idle:
                self._dismiss(self._idle.pop(0)[1])  # the one that has been without work for longest

    def _path(self, database: str | None) -> str | None:
        if database is None or self.limits.root is None or database.startswith(":memory:"):
            return database
        return str(self.limits.root / database)

    def _settings(self, child: PythonProcess) -> dict[str, str]:
        settings = {
            "temp_directory": str(self._spill / str(child.pid)),
            "allow_persistent_secrets": "false",  # they would be files of the worker, and so everybody's
        }
        if self.limits.memory_limit:
            settings["memory_limit"] = self.limits.memory_limit
        if self.limits.threads:
            settings["threads"] = str(self.limits.threads)
        return settings

    def _may_serve_again(self, child: PythonProcess, session: DuckdbSession) -> bool:
        return (
            not session.is_broken
            and session.rss_bytes <= self.limits.max_rss_bytes
            and child.calls < self.limits.max_requests_per_child
            and child.is_alive
            and not self._is_closed
        )

    async def _child_for(self, owner: Owner) -> PythonProcess:
        for index in reversed(range(len(self._idle))):
            idle_owner, child = self._idle[index]
            if idle_owner == owner:
                del self._idle[index]
                if child.is_alive:
                    return child
        self._refuse_if_closed()
        try:
            child = await PythonProcess.start(environment=self._environment, limits=self.limits.process)
        except Unavailable as exc:
            raise _unavailable(exc.message) from exc
        try:
            self._refuse_if_closed()
        except CallFailed:  # closed meanwhile: nobody else waits for this child any more
            child.kill()
            await child.wait_exited()
            raise
        self._alive.add(child)
        return child

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise _unavailable("the worker is stopping")

    def _dismiss(self, child: PythonProcess) -> None:
        child.kill()
        farewell = asyncio.create_task(self._see_off(child))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)

    async def _see_off(self, child: PythonProcess) -> None:
        await child.wait_exited()
        self._alive.discard(child)
        await asyncio.to_thread(shutil.rmtree, self._spill / str(child.pid), ignore_errors=True)


def _unavailable(reason: str) -> CallFailed:
    return failed(ErrorKind.UNKNOWN, "DUCKDB_UNAVAILABLE", reason, retryable=True)
