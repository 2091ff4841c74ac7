"""The duckdb tool: statements, each on its own, in a database that a child process holds."""

from __future__ import annotations

from noetl_worker.application.credentials import Auth, Credentials
from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed, without_secrets
from noetl_worker.tools.duckdb_secrets import secret_statements
from noetl_worker.tools.duckdb_sessions import DuckdbFailed, DuckdbSession, DuckdbSessions, Reply
from noetl_worker.tools.postgres_access import timed_out
from noetl_worker.tools.script_source import ScriptSources
from noetl_worker.tools.sql_results import Row, SqlError, StatementEnd, combined
from noetl_worker.tools.sql_source import sql_statements
from noetl_worker.tools.streamed_rows import UntimedSink
from noetl_worker.tools.tool_config import ToolConfig

DEFAULT_TIMEOUT_SECONDS = 600.0
BATCH_ROWS = 5000

_OPEN_TRANSACTION = SqlError(
    kind=ErrorKind.CLIENT_ERROR,
    code="DUCKDB_OPEN_TRANSACTION",
    message="the statements began a transaction and did not end it, so it was rolled back",
)


class DuckdbTool:
    """Runs SQL in files, in memory, and over whatever else DuckDB can read."""

    def __init__(
        self,
        sessions: DuckdbSessions,
        *,
        credentials: Credentials,
        scripts: ScriptSources,
        default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._sessions = sessions
        self._credentials = credentials
        self._scripts = scripts
        self._default_timeout_seconds = default_timeout_seconds

    async def run(self, call: ToolCall) -> Outcome:
        """The results of all statements; one that fails makes it an error, and the others run all the same."""
        config = ToolConfig(call)
        try:
            outcome = await self._outcome(config)
        except CallFailed as exc:
            outcome = exc.outcome
        return without_secrets(outcome, config.secrets)

    async def _outcome(self, config: ToolConfig) -> Outcome:
        statements = await sql_statements(config, self._scripts)
        auth = await config.auth(self._credentials)
        database, prepare = database_of(config, auth), secret_statements(auth)
        timeout_seconds = config.timeout_seconds(default=self._default_timeout_seconds)
        ends: list[StatementEnd] = []
        try:
            with CallLimit(timeout_seconds) as limit:
                async with self._sessions.session(config.owner, database=database, prepare=prepare) as session:
                    for place, statement in enumerate(statements, start=1):
                        if config.call.chunks is not None and place == len(statements):
                            sink = UntimedSink(config.call.chunks, limit)
                            ends.append(await self._stream(session, statement, sink))
                        else:
                            ends.append(await self._run(session, statement))
                if session.left_transaction_open:
                    ends.append(StatementEnd(error=_OPEN_TRANSACTION))
        except DuckdbFailed as exc:
            ends.append(StatementEnd(error=duckdb_error(exc)))
        except TimeoutError:
            if not limit.expired():
                raise
            ends.append(StatementEnd(error=timed_out(timeout_seconds)))
        return combined(ends, config.secrets)

    async def _run(self, session: DuckdbSession, statement: str) -> StatementEnd:
        max_bytes = self._sessions.limits.max_result_bytes
        rows: list[Row] = []
        size = 0
        try:
            reply = await session.run(statement, count=BATCH_ROWS)
            columns = reply.columns
            if columns is None:
                return StatementEnd(row_count=reply.row_count, message=f"{reply.message} {reply.row_count}")
            while True:
                rows += (dict(zip(columns, values, strict=True)) for values in reply.rows)
                size += reply.size
                if not reply.has_more or size > max_bytes:
                    break
                reply = await session.more(reply, count=BATCH_ROWS)
        except DuckdbFailed as exc:
            return StatementEnd(error=duckdb_error(exc))
        if size > max_bytes:
            message = f"the result has more than {max_bytes} bytes; write it to a file, or use LIMIT"
            error = SqlError(kind=ErrorKind.STORAGE_QUOTA, code="RESULT_TOO_LARGE", message=message)
            return StatementEnd(error=error)
        return StatementEnd(columns=columns, rows=rows, row_count=len(rows))

    async def _stream(self, session: DuckdbSession, statement: str, sink: UntimedSink) -> StatementEnd:
        """The rows go out in chunks; only their number and columns are left."""
        try:
            reply = await session.run(statement, count=sink.chunk_rows, exact=True)
            columns = reply.columns
            if columns is None:
                return StatementEnd(row_count=reply.row_count, message=f"{reply.message} {reply.row_count}")
            while reply.rows:
                has_more = reply.has_more
                rows: list[Row] = [dict(zip(columns, values, strict=True)) for values in reply.rows]
                reply = Reply(columns=columns)  # the session's copy: two chunks are in memory, and not three
                await sink.put(rows)
                del rows
                if not has_more:
                    break
                reply = await session.more(reply, count=sink.chunk_rows)
        except DuckdbFailed as exc:
            return StatementEnd(error=duckdb_error(exc))
        return StatementEnd(columns=columns, row_count=sink.row_count, is_streamed=True)


def database_of(config: ToolConfig, auth: Auth) -> str | None:
    """The file of a call: its own, else that of its credential, else none: a database in memory."""
    written = config.text("database")
    if written:
        return written
    if auth.single is not None and auth.single.type.lower() in ("duckdb", "generic"):
        stored = auth.single.data.get("database") or auth.single.data.get("path")
        return stored if isinstance(stored, str) else None
    return None


def duckdb_error(error: DuckdbFailed) -> SqlError:
    """As the results of statements tell it."""
    return SqlError(kind=error.kind, code=error.code, message=error.message)
