"""Run one statement and give its rows out in chunks, as a cursor of the server has them."""

from __future__ import annotations

from contextlib import AsyncExitStack

from noetl_worker.tools.postgres_errors import DRIVER_ERRORS, sql_error
from noetl_worker.tools.postgres_rows import run_statement, with_cursor
from noetl_worker.tools.postgres_sessions import Connection
from noetl_worker.tools.postgres_values import converters
from noetl_worker.tools.sql_results import StatementEnd
from noetl_worker.tools.streamed_rows import UntimedSink


async def stream_statement(
    connection: Connection, statement: str, sink: UntimedSink, *, max_bytes: int
) -> StatementEnd:
    """What a statement gave; its rows have gone out, and only their number and columns are left."""
    if not with_cursor(statement):
        end = await run_statement(connection, statement, max_bytes=max_bytes)
        for start in range(0, len(end.rows), sink.chunk_rows):
            await sink.put(list(end.rows[start : start + sink.chunk_rows]))
        return StatementEnd(
            columns=end.columns, row_count=end.row_count, message=end.message, error=end.error, is_streamed=True
        )
    try:
        prepared = await connection.prepare(statement)
        attributes = prepared.get_attributes()
        if not attributes:
            return await run_statement(connection, statement, max_bytes=max_bytes)
        columns = tuple(attribute.name for attribute in attributes)
        fields = tuple(zip(columns, converters(attributes), strict=True))
        async with AsyncExitStack() as stack:
            if not connection.is_in_transaction():
                await stack.enter_async_context(connection.transaction())
            cursor = await prepared.cursor()
            while records := await cursor.fetch(sink.chunk_rows):
                is_last = len(records) < sink.chunk_rows
                rows = [
                    {name: convert(value) for (name, convert), value in zip(fields, record, strict=True)}
                    for record in records
                ]
                del records  # the driver's copy: while the next chunk is read, two are in memory, and not three
                await sink.put(rows)
                del rows
                if is_last:
                    break
        return StatementEnd(columns=columns, row_count=sink.row_count, is_streamed=True)
    except DRIVER_ERRORS as exc:
        return StatementEnd(error=sql_error(exc))
