"""Writes the rows of a transfer to a table of PostgreSQL, by COPY, in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from noetl_worker.tools.postgres_access import LentConnection, pool_of, sql_failed
from noetl_worker.tools.postgres_copy import Column, copy_lines
from noetl_worker.tools.postgres_errors import DRIVER_ERRORS, sql_error
from noetl_worker.tools.postgres_sessions import Connection
from noetl_worker.tools.tool_config import ToolConfig
from noetl_worker.tools.transfer_chunks import Chunk
from noetl_worker.tools.transfer_sources import TransferAccess
from noetl_worker.tools.transfer_table import (
    Mode,
    TablePlan,
    key_columns,
    key_missing,
    matched,
    names_text,
    on_conflict,
)

_STAGE = "noetl_transfer"
_ORDER = "noetl_transfer_row"
_LINES_AT_ONCE = 500

_PRIMARY_KEY = """
SELECT a.attname FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = $1::text::regclass AND i.indisprimary
ORDER BY array_position(i.indkey::int2[], a.attnum)
"""


class PostgresWriter:
    """Takes chunks; what it has written counts when the transaction ends."""

    def __init__(self, connection: Connection, plan: TablePlan) -> None:
        self._connection = connection
        self._plan = plan
        self._columns: dict[str, Column] = {}
        self._keys: list[str] = []
        self._staged: tuple[str, ...] | None = None

    async def begin(self) -> None:
        """Look at the table, and make room in it if its rows are to be replaced."""
        prepared = await self._connection.prepare(f"SELECT * FROM {self._plan.quoted} LIMIT 0")  # noqa: S608
        for attribute in prepared.get_attributes():
            kind = attribute.type
            self._columns[attribute.name] = Column(
                name=attribute.name, type_name=kind.name, is_array=kind.kind == "array"
            )
        if self._plan.mode is Mode.UPSERT:
            found = await self._connection.fetch(_PRIMARY_KEY, self._plan.quoted)
            self._keys = key_columns(self._plan, [row["attname"] for row in found], tuple(self._columns))
        elif self._plan.mode is Mode.REPLACE:
            await self._connection.execute(f"DELETE FROM {self._plan.quoted}")  # noqa: S608

    async def write(self, chunk: Chunk) -> None:
        """Put a chunk into the table."""
        names = matched(chunk.columns, tuple(self._columns), self._plan)
        if self._plan.mode is Mode.UPSERT:
            await self._upsert(names, chunk.rows)
        else:
            *schema, table = self._plan.parts
            await self._copy(table, names, chunk.rows, schema=schema[-1] if schema else None)

    async def _upsert(self, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Through a table of this transaction's own; of rows with the same key the last one counts."""
        lacking = key_missing(self._plan, self._keys, names)
        if lacking is not None:
            raise lacking
        await self._stage(names)
        await self._copy(_STAGE, names, rows, schema=None)
        columns, keys = names_text(names), names_text(self._keys)
        await self._connection.execute(
            f"INSERT INTO {self._plan.quoted} ({columns}) "  # noqa: S608 - names are quoted
            f"SELECT {columns} FROM (SELECT DISTINCT ON ({keys}) * FROM {_STAGE} ORDER BY {keys}, {_ORDER} DESC) s "
            f"{on_conflict(self._keys, names)}"
        )

    async def _stage(self, names: Sequence[str]) -> None:
        if self._staged == tuple(names):
            await self._connection.execute(f"TRUNCATE {_STAGE}")
            return
        await self._connection.execute(f"DROP TABLE IF EXISTS {_STAGE}")
        await self._connection.execute(
            f"CREATE TEMPORARY TABLE {_STAGE} ON COMMIT DROP AS "  # noqa: S608 - names are quoted
            f"SELECT {names_text(names)} FROM {self._plan.quoted} WITH NO DATA"
        )
        await self._connection.execute(f"ALTER TABLE {_STAGE} ADD {_ORDER} bigint GENERATED ALWAYS AS IDENTITY")
        self._staged = tuple(names)

    async def _copy(
        self, table: str, names: Sequence[str], rows: Sequence[Sequence[object]], *, schema: str | None
    ) -> None:
        columns = [self._columns[name] for name in names]

        async def lines() -> AsyncIterator[bytes]:
            for start in range(0, len(rows), _LINES_AT_ONCE):
                yield b"".join(copy_lines(columns, rows[start : start + _LINES_AT_ONCE]))
                await asyncio.sleep(0)  # a chunk may be large, and leases must be kept up meanwhile

        await self._connection.copy_to_table(
            table, schema_name=schema, columns=list(names), source=lines(), format="text", encoding="utf-8"
        )


@asynccontextmanager
async def postgres_writer(
    config: ToolConfig, access: TransferAccess, plan: TablePlan, *, timeout_seconds: float
) -> AsyncIterator[PostgresWriter]:
    """A writer; leaving well commits, leaving with an exception undoes everything."""
    pool = await pool_of(config, access.credentials, access.pools)
    async with LentConnection(access.pools, pool, timeout_seconds=timeout_seconds) as connection:
        try:
            async with connection.transaction():
                writer = PostgresWriter(connection, plan)
                await writer.begin()
                yield writer
        except DRIVER_ERRORS as exc:
            raise sql_failed(sql_error(exc)) from exc
