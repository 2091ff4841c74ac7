"""Where rows of a transfer come from: an HTTP server, a query of PostgreSQL or DuckDB; chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from noetl_core.canonical import JsonValue

from noetl_worker.application.credentials import Credentials
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import CallFailed, failed, misconfigured
from noetl_worker.tools.duckdb import database_of
from noetl_worker.tools.duckdb_secrets import secret_statements
from noetl_worker.tools.duckdb_sessions import DuckdbFailed, DuckdbSessions
from noetl_worker.tools.http import TRANSPORT_ERRORS, prepare
from noetl_worker.tools.http_clients import HttpClients, HttpOptions, reply_of
from noetl_worker.tools.http_request import HttpRequest
from noetl_worker.tools.http_response import reply_outcome, transport_outcome
from noetl_worker.tools.http_transport import HttpResponse
from noetl_worker.tools.json_stream import JsonItems
from noetl_worker.tools.postgres_access import LentConnection, pool_of, sql_failed
from noetl_worker.tools.postgres_errors import DRIVER_ERRORS, sql_error
from noetl_worker.tools.postgres_pools import PostgresPools
from noetl_worker.tools.postgres_rows import read_batches
from noetl_worker.tools.sql_text import split_statements
from noetl_worker.tools.tool_config import ToolConfig
from noetl_worker.tools.transfer_chunks import Chunk, Mapped

_MAX_SHOWN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferAccess:
    """Everything that can be read from and written to."""

    clients: HttpClients
    pools: PostgresPools
    sessions: DuckdbSessions
    credentials: Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """How to read: into which columns, how many rows at once, and for how long at most."""

    mapped: Mapped
    chunk_rows: int
    timeout_seconds: float


async def open_source(config: ToolConfig, access: TransferAccess, plan: ReadPlan) -> AsyncGenerator[Chunk, None]:
    """The chunks of a source, which is checked now and read when they are asked for."""
    kind = config.required_text("type", "kind")
    match kind:
        case "http":
            request, options = await prepare(config, access.credentials, default_timeout_seconds=plan.timeout_seconds)
            return _http_chunks(config, access.clients, plan, request=request, options=options)
        case "postgres" | "postgresql":
            pool = await pool_of(config, access.credentials, access.pools)
            query = _query(config)

            async def postgres_chunks() -> AsyncGenerator[Chunk, None]:
                async with LentConnection(access.pools, pool, timeout_seconds=plan.timeout_seconds) as connection:
                    try:
                        async with aclosing(read_batches(connection, query, batch_rows=plan.chunk_rows)) as batches:
                            async for columns, records in batches:
                                yield plan.mapped.of_rows(columns, records)
                    except DRIVER_ERRORS as exc:
                        raise sql_failed(sql_error(exc)) from exc

            return postgres_chunks()
        case "duckdb":
            auth = await config.auth(access.credentials)
            query, database, secrets = _query(config), database_of(config, auth), secret_statements(auth)

            async def duckdb_chunks() -> AsyncGenerator[Chunk, None]:
                try:
                    async with access.sessions.session(config.owner, database=database, prepare=secrets) as session:
                        reply = await session.run(query, count=plan.chunk_rows, exact=True)
                        if reply.columns is None:
                            raise misconfigured("the query of the source gives no rows")
                        while reply.rows:
                            yield plan.mapped.of_rows(reply.columns, reply.rows)
                            if not reply.has_more:
                                break
                            reply = await session.more(reply, count=plan.chunk_rows)
                except DuckdbFailed as exc:
                    raise failed(exc.kind, exc.code, exc.message) from exc

            return duckdb_chunks()
        case _:
            raise misconfigured(f"a transfer cannot read from {kind!r}: http, postgres and duckdb are possible")


async def _http_chunks(
    config: ToolConfig, clients: HttpClients, plan: ReadPlan, *, request: HttpRequest, options: HttpOptions
) -> AsyncGenerator[Chunk, None]:
    path = config.text("data_path", "items") or ""
    try:
        async with clients.stream(request, options, secrets=config.secrets) as response:
            if not 200 <= response.status_code < 300:
                raise await _refused(response, request, config)
            items: list[JsonValue] = []
            async with response.body() as pieces:
                async for item in JsonItems(pieces, max_bytes=clients.limits.max_response_bytes, path=path):
                    items.append(item)
                    if len(items) >= plan.chunk_rows:
                        yield plan.mapped.of_items(items)
                        items = []
            if items:
                yield plan.mapped.of_items(items)
    except TRANSPORT_ERRORS as exc:
        raise CallFailed(transport_outcome(exc, timeout_seconds=options.timeout_seconds)) from exc


async def _refused(response: HttpResponse, request: HttpRequest, config: ToolConfig) -> CallFailed:
    """The same outcome as that of an http step, with the beginning of what the server said."""
    content, _ = await response.whole(_MAX_SHOWN_BYTES)
    reply = reply_of(response, content, is_complete=True, elapsed_seconds=0.0)
    return CallFailed(
        reply_outcome(reply, secrets=config.secrets, secret_params=request.secret_params, max_bytes=_MAX_SHOWN_BYTES)
    )


def _query(config: ToolConfig) -> str:
    statements = split_statements(config.required_text("query", "command", "sql"))
    if len(statements) != 1:
        raise failed(ErrorKind.SCHEMA, "TOOL_CONFIG", "the `query` of a source is one statement")
    return statements[0]
