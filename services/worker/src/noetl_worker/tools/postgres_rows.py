"""Run one statement: rows come in batches through a cursor of the server, so that none is too much at once."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import asyncpg

from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.postgres_errors import DRIVER_ERRORS, sql_error
from noetl_worker.tools.postgres_sessions import Connection
from noetl_worker.tools.postgres_values import converters
from noetl_worker.tools.sql_changes import changes_rows_alone
from noetl_worker.tools.sql_results import Row, SqlError, StatementEnd
from noetl_worker.tools.sql_text import first_keyword, without_comments
from noetl_worker.tools.sql_values import approximate_bytes

MAX_BATCH_ROWS = 1000
BATCH_BYTES = 4 * 1024 * 1024

_FIRST_BATCH_ROWS = 100
_WITH_CURSOR = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "INSERT", "UPDATE", "DELETE", "MERGE"})
"""A cursor needs a transaction, which others of the statements that give rows may not be in, or may end."""

_CHANGING = frozenset({"INSERT", "UPDATE", "DELETE"})

_COPY_STREAM = re.compile(r"COPY\b.*\b(STDIN|STDOUT)\b", re.IGNORECASE | re.DOTALL)


async def run_statement(connection: Connection, statement: str, *, max_bytes: int) -> StatementEnd:
    """What a statement gave. It is its own transaction, unless the statements before it have begun one."""
    if changes_rows_alone(statement):  # one round trip: there is nothing to be described first
        return await _changed(connection, statement, alone=True)
    keyword = first_keyword(statement)
    if keyword == "COPY" and _COPY_STREAM.search(without_comments(statement)):
        message = "COPY from and to the client is not possible here: use a transfer step"
        return StatementEnd(error=SqlError(kind=ErrorKind.SCHEMA, code="TOOL_CONFIG", message=message))
    try:
        if _gives_no_rows(keyword, statement):
            return await _changed(connection, statement)
        prepared = await connection.prepare(statement)
        attributes = prepared.get_attributes()
        if not attributes:
            await prepared.fetch()
            tag = prepared.get_statusmsg() or ""
            return StatementEnd(row_count=_affected(tag), message=tag)
        columns = tuple(attribute.name for attribute in attributes)
        fields = tuple(zip(columns, converters(attributes), strict=True))
        rows: list[Row] = []
        size = 0
        async with aclosing(_batches(connection, prepared, statement)) as batches:
            async for batch in batches:
                for record in batch:
                    row = {name: convert(value) for (name, convert), value in zip(fields, record, strict=True)}
                    size += approximate_bytes(row)
                    rows.append(row)
                if size > max_bytes:
                    message = f"the result has more than {max_bytes} bytes; use a transfer step, or LIMIT"
                    error = SqlError(kind=ErrorKind.STORAGE_QUOTA, code="RESULT_TOO_LARGE", message=message)
                    return StatementEnd(error=error)
        return StatementEnd(columns=columns, rows=rows, row_count=len(rows))
    except DRIVER_ERRORS as exc:
        return StatementEnd(error=sql_error(exc))


async def _changed(connection: Connection, statement: str, *, alone: bool = False) -> StatementEnd:
    """What a statement has changed that gives no rows."""
    try:
        tag = await connection.execute(statement)
    except DRIVER_ERRORS as exc:
        return StatementEnd(error=sql_error(exc))
    return StatementEnd(row_count=_affected(tag), message=tag, has_changed_rows_alone=alone)


def _gives_no_rows(keyword: str, statement: str) -> bool:
    """Whether it is sure that a statement gives none."""
    return keyword in _CHANGING and "returning" not in statement.lower()


def with_cursor(statement: str) -> bool:
    """Whether the rows of a statement can be read bit by bit."""
    return first_keyword(statement) in _WITH_CURSOR


def is_lost(connection: Connection) -> bool:
    """Whether nothing more can be run, because the server or the pool has ended the connection."""
    return bool(connection.is_closed())


async def read_batches(
    connection: Connection, query: str, *, batch_rows: int
) -> AsyncGenerator[tuple[tuple[str, ...], list[asyncpg.Record]], None]:
    """The rows of a query as the driver has them, so many at a time, each with the names of its columns."""
    async with connection.transaction(readonly=first_keyword(query) in ("SELECT", "VALUES", "TABLE")):
        prepared = await connection.prepare(query)
        columns = tuple(attribute.name for attribute in prepared.get_attributes())
        cursor = await prepared.cursor()
        while batch := await cursor.fetch(batch_rows):
            yield columns, batch


async def _batches(connection: Connection, prepared: Any, statement: str) -> AsyncGenerator[list[asyncpg.Record], None]:
    if not with_cursor(statement):
        yield await prepared.fetch()
        return
    async with AsyncExitStack() as stack:
        if not connection.is_in_transaction():
            await stack.enter_async_context(connection.transaction())
        cursor = await prepared.cursor()
        count = _FIRST_BATCH_ROWS
        while batch := await cursor.fetch(count):
            yield batch
            if len(batch) < count:
                return
            count = _next_count(batch)


def _next_count(batch: list[asyncpg.Record]) -> int:
    """As many rows as are about BATCH_BYTES, going by a sample of the last ones."""
    sample = batch[:20]
    width = sum(len(str(value)) for record in sample for value in record) // len(sample) + 1
    return max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // width))


def _affected(tag: str) -> int:
    """The number at the end of `INSERT 0 3`; statements that change no rows have none."""
    last = tag.rpartition(" ")[2]
    return int(last) if last.isdigit() else 0
