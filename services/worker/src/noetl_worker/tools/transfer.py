"""The transfer tool: rows from one place to another, in chunks, all of them or none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed, misconfigured, without_secrets
from noetl_worker.tools.tool_config import ToolConfig
from noetl_worker.tools.transfer_chunks import Chunk, Mapped, two_at_a_time
from noetl_worker.tools.transfer_duckdb import duckdb_writer
from noetl_worker.tools.transfer_postgres import postgres_writer
from noetl_worker.tools.transfer_sources import ReadPlan, TransferAccess, open_source
from noetl_worker.tools.transfer_table import TablePlan, table_plan

DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_CHUNK_ROWS = 1000
MAX_CHUNK_ROWS = 100_000


class Writer(Protocol):
    """Takes chunks."""

    async def write(self, chunk: Chunk) -> None:
        """Put a chunk into the table."""
        ...


class TransferTool:
    """Moves rows from `source` to `target`."""

    def __init__(self, access: TransferAccess, *, default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._access = access
        self._default_timeout_seconds = default_timeout_seconds

    async def run(self, call: ToolCall) -> Outcome:
        """`{rows_transferred, chunks_processed}`; after an error nothing was transferred, so it may be tried again."""
        config = ToolConfig(call)
        timeout_seconds = config.timeout_seconds(default=self._default_timeout_seconds)
        try:
            with CallLimit(timeout_seconds) as limit:
                outcome = await self._transfer(config, timeout_seconds)
        except CallFailed as exc:
            outcome = exc.outcome
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"the transfer was not complete after {timeout_seconds:g} s and was undone"
            outcome = Outcome.failed(kind=ErrorKind.TIMEOUT, code="TIMEOUT", message=message)
        return without_secrets(outcome, config.secrets)

    async def _transfer(self, config: ToolConfig, timeout_seconds: float) -> Outcome:
        source, target = config.below("source"), config.below("target")
        chunk_rows = int(config.number("chunk_size", default=DEFAULT_CHUNK_ROWS, minimum=1))
        plan = ReadPlan(
            mapped=Mapped(_mapping(target)),
            chunk_rows=min(chunk_rows, MAX_CHUNK_ROWS),
            timeout_seconds=timeout_seconds,
        )
        _refuse_same_file(source, target)
        table = table_plan(target)
        chunks = await open_source(source, self._access, plan)
        rows = count = 0
        async with (
            self._writer(target, table, timeout_seconds) as writer,
            aclosing(two_at_a_time(chunks)) as coming,
        ):
            async for chunk in coming:
                await writer.write(chunk)
                rows += len(chunk.rows)
                count += 1
                del chunk
        return Outcome(data={"rows_transferred": rows, "chunks_processed": count})

    @asynccontextmanager
    async def _writer(self, target: ToolConfig, table: TablePlan, timeout_seconds: float) -> AsyncIterator[Writer]:
        kind = target.required_text("type", "kind")
        if kind in ("postgres", "postgresql"):
            async with postgres_writer(target, self._access, table, timeout_seconds=timeout_seconds) as to_postgres:
                yield to_postgres
        elif kind == "duckdb":
            async with duckdb_writer(target, self._access, table) as to_duckdb:
                yield to_duckdb
        else:
            raise misconfigured(f"a transfer cannot write to {kind!r}: postgres and duckdb are possible")


def _mapping(target: ToolConfig) -> dict[str, str]:
    mapping = target.mapping("mapping")
    for column, field in mapping.items():
        if not isinstance(field, str) or not field:
            raise misconfigured(f"`mapping.{column}` is not the name of a field")
    return {column: str(field) for column, field in mapping.items()}


def _refuse_same_file(source: ToolConfig, target: ToolConfig) -> None:
    """One process at a time may have a file of DuckDB open."""
    if source.text("type", "kind") == target.text("type", "kind") == "duckdb":
        file = source.text("database")
        if file is not None and file == target.text("database"):
            raise misconfigured("source and target are the same file: use a duckdb step with INSERT … SELECT")
