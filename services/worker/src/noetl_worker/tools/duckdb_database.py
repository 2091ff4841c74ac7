"""DuckDB inside a child process: opened, asked statement by statement, closed. `duckdb_sessions.py` is the other end.

It runs in a process of its own because nothing else can stop a query for certain.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb

from noetl_worker.tools.duckdb_timezones import provide_time_zones
from noetl_worker.tools.sql_text import first_keyword, without_comments
from noetl_worker.tools.sql_values import json_value

BATCH_BYTES = 8 * 1024 * 1024

_FETCH_ROWS = 500
_LOCK_PAUSE_SECONDS = 0.05
_MAKING_SECONDS = 2.0
"""For which a file that is no database may be about to become one."""

_KINDS: tuple[tuple[str, str], ...] = (
    ("ConstraintException", "db_constraint"),
    ("ParserException", "parse"),
    ("SyntaxException", "parse"),
    ("CatalogException", "schema"),
    ("BinderException", "schema"),
    ("TypeMismatchException", "schema"),
    ("InvalidTypeException", "schema"),
    ("NotImplementedException", "schema"),
    ("ConversionException", "transform"),
    ("OutOfRangeException", "transform"),
    ("InvalidInputException", "transform"),
    ("TransactionException", "db_deadlock"),
    ("ConnectionException", "db_connection"),
    ("HTTPException", "connection"),
    ("PermissionException", "storage_access"),
    ("OutOfMemoryException", "storage_quota"),
    ("IOException", "storage_access"),
)

_CHANGES = frozenset(
    {
        duckdb.StatementType.ALTER,
        duckdb.StatementType.ATTACH,
        duckdb.StatementType.COPY,
        duckdb.StatementType.CREATE,
        duckdb.StatementType.DELETE,
        duckdb.StatementType.DETACH,
        duckdb.StatementType.DROP,
        duckdb.StatementType.INSERT,
        duckdb.StatementType.LOAD,
        duckdb.StatementType.MERGE_INTO,
        duckdb.StatementType.PREPARE,
        duckdb.StatementType.SET,
        duckdb.StatementType.TRANSACTION,
        duckdb.StatementType.UPDATE,
        duckdb.StatementType.VACUUM,
        duckdb.StatementType.VARIABLE_SET,
    }
)
"""Statements that give no rows of their own, but at most a count."""

_database: Database | None = None


def perform(request: Mapping[str, Any]) -> dict[str, object]:
    """One request of the worker; an error of DuckDB is an answer too."""
    global _database  # noqa: PLW0603 - what this process is for
    operation: str = request["operation"]
    arguments: Mapping[str, Any] = request["arguments"]
    try:
        if operation == "open":
            _close()
            _database = Database(**arguments)
            return {"value": None}
        if operation == "close":
            return {"value": _close()}
        if _database is None:
            raise duckdb.ConnectionException("no database is open")
        return {"value": _OPERATIONS[operation](_database, **arguments)}
    except duckdb.Error as exc:
        return {"error": described(exc)}


class Database:
    """One connection, with at most one query whose rows are being read."""

    def __init__(
        self,
        *,
        database: str | None,
        prepare: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        lock_seconds: float = 0.0,
    ) -> None:
        provide_time_zones()
        self._connection = _connected(database or ":memory:", settings or {}, lock_seconds=lock_seconds)
        self._connection.execute("SET TimeZone = 'UTC'")
        for statement in prepare:
            self._connection.execute(statement)
        self._convert: list[Callable[[Any], object]] | None = None

    def run(self, *, statement: str, count: int, exact: bool = False) -> dict[str, object]:
        """What a statement gave: `columns` and the first rows, or how many rows it changed."""
        self._convert = None
        kinds = [one.type for one in self._connection.extract_statements(statement)]
        self._connection.execute(statement)
        description = self._connection.description or []
        columns = [str(column[0]) for column in description]
        is_returning = "RETURNING" in without_comments(statement).upper()
        if columns in (["Count"], ["Success"], []) and kinds[-1:] and kinds[-1] in _CHANGES and not is_returning:
            return {"columns": None, "row_count": self._changed(), "message": first_keyword(statement)}
        self._convert = [_converter(str(column[1]), exact=exact) for column in description]
        return {"columns": columns, **self.more(count=count)}

    def more(self, *, count: int) -> dict[str, object]:
        """The next rows of the query: so many, or fewer if they are large; as JSON text, which is quick to pass on."""
        rows: list[str] = []
        size = 0
        while self._convert is not None and len(rows) < count and size < BATCH_BYTES:
            fetched = self._connection.fetchmany(min(_FETCH_ROWS, count - len(rows)))
            if not fetched:
                self._convert = None
                break
            for row in fetched:
                values = [turn(value) for turn, value in zip(self._convert, row, strict=True)]
                rows.append(json.dumps(values, ensure_ascii=False))
            size += sum(map(len, rows[-len(fetched) :]))
        return {"rows": f"[{','.join(rows)}]", "has_more": self._convert is not None}

    def execute(self, *, statement: str, parameters: Sequence[object] = ()) -> list[list[object]]:
        """A statement of the worker's own, with its rows as lists."""
        self._connection.execute(statement, list(parameters))
        return [[json_value(value) for value in row] for row in self._connection.fetchall()]

    def close(self) -> bool:
        """Let go of the file; the answer is whether a transaction was left open, which is undone."""
        try:
            self._connection.execute("ROLLBACK")
            was_open = True
        except duckdb.Error:
            was_open = False
        self._connection.close()
        return was_open

    def _changed(self) -> int:
        rows = self._connection.fetchall()
        count = rows[0][0] if rows and rows[0] else 0
        return count if isinstance(count, int) and not isinstance(count, bool) else 0


_OPERATIONS: Mapping[str, Callable[..., object]] = {
    "run": Database.run,
    "more": Database.more,
    "execute": Database.execute,
}


def described(error: duckdb.Error) -> dict[str, object]:
    """An error in words that policies understand."""
    name = type(error).__name__
    message = str(error)
    kind = next((kind for known, kind in _KINDS if known == name), "unknown")
    if _is_locked(error):
        kind = "db_connection"
    return {"kind": kind, "code": f"DUCKDB_{name}", "message": message}


def _close() -> bool:
    global _database
    closing, _database = _database, None
    return closing.close() if closing is not None else False


def _connected(database: str, settings: Mapping[str, str], *, lock_seconds: float) -> duckdb.DuckDBPyConnection:
    """One process at a time may have a file open, so another's call may have to end first."""
    deadline = time.monotonic() + lock_seconds
    while True:
        try:
            return duckdb.connect(database, config={**settings})
        except duckdb.IOException as exc:
            is_soon_free = _is_locked(exc) or _is_being_made(exc, database)
            if not is_soon_free or time.monotonic() >= deadline:
                raise
            time.sleep(_LOCK_PAUSE_SECONDS)


def _is_locked(error: duckdb.Error) -> bool:
    return "Could not set lock on file" in str(error)


def _is_being_made(error: duckdb.Error, database: str) -> bool:
    """Who makes a file has it there before it is a database and locked: another process may look just then."""
    if "is not a valid DuckDB database file" not in str(error):
        return False
    try:
        return time.time() - Path(database).stat().st_mtime < _MAKING_SECONDS
    except OSError:
        return True  # it has gone again, so it was being made


def _converter(type_name: str, *, exact: bool) -> Callable[[Any], object]:
    if type_name == "JSON":
        return _native
    if exact and type_name.startswith("DECIMAL"):
        return lambda value: str(value) if isinstance(value, Decimal) else value
    return json_value


def _native(text: object) -> object:
    return json_value(json.loads(text)) if isinstance(text, str) else None
