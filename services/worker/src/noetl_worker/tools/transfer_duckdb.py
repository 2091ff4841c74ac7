"""Writes the rows of a transfer to a table of DuckDB, column by column as text that the table's types read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from noetl_worker.tools.call_failed import failed
from noetl_worker.tools.duckdb import database_of
from noetl_worker.tools.duckdb_secrets import secret_statements
from noetl_worker.tools.duckdb_sessions import DuckdbFailed, DuckdbSession
from noetl_worker.tools.sql_text import quoted_name, quoted_text
from noetl_worker.tools.sql_values import json_value
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


class DuckdbWriter:
    """Takes chunks; what it has written counts when the transaction ends."""

    def __init__(self, session: DuckdbSession, plan: TablePlan) -> None:
        self._session = session
        self._plan = plan
        self._types: dict[str, str] = {}
        self._keys: list[str] = []

    async def begin(self) -> None:
        """Look at the table, and make room in it if its rows are to be replaced."""
        await self._execute("BEGIN")
        described = await self._execute(f"SELECT name, type, pk FROM pragma_table_info({self._literal})")  # noqa: S608
        self._types = {str(name): str(type_name) for name, type_name, _ in described}
        if self._plan.mode is Mode.UPSERT:
            primary_key = [str(name) for name, _, is_key in described if is_key]
            self._keys = key_columns(self._plan, primary_key, tuple(self._types))
        elif self._plan.mode is Mode.REPLACE:
            await self._execute(f"DELETE FROM {self._plan.quoted}")  # noqa: S608

    async def write(self, chunk: Chunk) -> None:
        """Put a chunk into the table."""
        names = matched(chunk.columns, tuple(self._types), self._plan)
        is_upsert = self._plan.mode is Mode.UPSERT
        lacking = key_missing(self._plan, self._keys, names) if is_upsert else None
        if lacking is not None:
            raise lacking
        values = [[_as_text(row[place], self._types[name]) for row in chunk.rows] for place, name in enumerate(names)]
        unnested = ", ".join(f"unnest(${place + 1}::VARCHAR[]) AS c{place}" for place in range(len(names)))
        chosen = ", ".join(
            f"{_expression(f'c{place}', self._types[name])} AS {quoted_name(name)}" for place, name in enumerate(names)
        )
        # Of rows with the same key the last one counts.
        order = f", unnest(range({len(chunk.rows)})) AS noetl_row" if is_upsert else ""
        last = f" QUALIFY row_number() OVER (PARTITION BY {names_text(self._keys)} ORDER BY noetl_row DESC) = 1"
        await self._execute(
            f"INSERT INTO {self._plan.quoted} ({names_text(names)}) "  # noqa: S608 - names are quoted
            f"SELECT {chosen} FROM (SELECT {unnested}{order}){last if is_upsert else ''} "
            f"{on_conflict(self._keys, names) if is_upsert else ''}",
            values,
        )

    async def commit(self) -> None:
        """Let it count."""
        await self._execute("COMMIT")

    @property
    def _literal(self) -> str:
        return quoted_text(self._plan.quoted)

    async def _execute(self, statement: str, parameters: Sequence[object] = ()) -> list[list[object]]:
        rows: list[list[object]] = await self._session.ask("execute", statement=statement, parameters=[*parameters])
        return rows


@asynccontextmanager
async def duckdb_writer(config: ToolConfig, access: TransferAccess, plan: TablePlan) -> AsyncIterator[DuckdbWriter]:
    """A writer; leaving well commits, leaving with an exception undoes everything."""
    auth = await config.auth(access.credentials)
    database, secrets = database_of(config, auth), secret_statements(auth)
    try:
        async with access.sessions.session(config.owner, database=database, prepare=secrets) as session:
            writer = DuckdbWriter(session, plan)
            await writer.begin()
            yield writer
            await writer.commit()
    except DuckdbFailed as exc:
        raise failed(exc.kind, exc.code, exc.message) from exc


def _as_text(value: object, type_name: str) -> str | None:
    if value is None:
        return None
    if type_name == "BLOB":
        return _base64(value)
    if type_name == "JSON" and not (isinstance(value, str) and value.lstrip()[:1] in ("{", "[")):
        return json.dumps(json_value(value), ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    plain = str(value) if isinstance(value, int) or not isinstance(value, list | dict | float) else json_value(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="replace")
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _base64(value: object) -> str:
    """Results carry bytes as base64; other text is its own bytes."""
    if isinstance(value, str):
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            return base64.b64encode(value.encode()).decode()
        return value
    return base64.b64encode(value if isinstance(value, bytes) else str(value).encode()).decode()


def _expression(column: str, type_name: str) -> str:
    return f"from_base64({column})" if type_name == "BLOB" else f"CAST({column} AS {type_name})"
