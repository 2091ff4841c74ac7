"""The postgres tool: statements, each on its own, over pooled connections."""

from __future__ import annotations

import contextlib

from noetl_worker.application.credentials import Credentials
from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.open_frame import frame_task
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed, without_secrets
from noetl_worker.tools.postgres_access import LentConnection, pool_of, timed_out
from noetl_worker.tools.postgres_errors import DRIVER_ERRORS
from noetl_worker.tools.postgres_pools import PostgresPools
from noetl_worker.tools.postgres_rows import is_lost, run_statement
from noetl_worker.tools.postgres_sessions import Connection
from noetl_worker.tools.postgres_stream import stream_statement
from noetl_worker.tools.script_source import ScriptSources
from noetl_worker.tools.sql_results import SqlError, StatementEnd, combined
from noetl_worker.tools.sql_source import sql_statements
from noetl_worker.tools.streamed_rows import UntimedSink
from noetl_worker.tools.tool_config import ToolConfig

DEFAULT_TIMEOUT_SECONDS = 600.0

_OPEN_TRANSACTION = SqlError(
    kind=ErrorKind.CLIENT_ERROR,
    code="PG_OPEN_TRANSACTION",
    message="the statements began a transaction and did not end it, so it was rolled back",
)


class PostgresTool:
    """Runs SQL in the databases that credentials name."""

    def __init__(
        self,
        pools: PostgresPools,
        *,
        credentials: Credentials,
        scripts: ScriptSources,
        default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._pools = pools
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
        pool = config.value("pool") if "pool" in config.call.config else None
        max_size = pool.get("max_size") if isinstance(pool, dict) else None
        limit_of_pool = max_size if isinstance(max_size, int) and max_size > 0 else None
        key = await pool_of(config, self._credentials, self._pools, max_size=limit_of_pool)
        timeout_seconds = config.timeout_seconds(default=self._default_timeout_seconds)
        ends: list[StatementEnd] = []
        try:
            with CallLimit(timeout_seconds) as limit:
                await self._run_all(
                    statements,
                    ends,
                    LentConnection(
                        self._pools, key, timeout_seconds=timeout_seconds, of_task=frame_task(config.call.task)
                    ),
                    sink=UntimedSink(config.call.chunks, limit) if config.call.chunks else None,
                )
        except TimeoutError:
            if not limit.expired():
                raise
            ends.append(StatementEnd(error=timed_out(timeout_seconds)))
        return combined(ends, config.secrets)

    async def _run_all(
        self,
        statements: list[str],
        ends: list[StatementEnd],
        lent: LentConnection,
        *,
        sink: UntimedSink | None,
    ) -> None:
        async with lent as connection:
            for place, statement in enumerate(statements, start=1):
                max_bytes = self._pools.limits.max_result_bytes
                if sink is not None and place == len(statements):
                    end = await stream_statement(connection, statement, sink, max_bytes=max_bytes)
                else:
                    end = await run_statement(connection, statement, max_bytes=max_bytes)
                ends.append(end)
                if end.has_changed_rows_alone and len(statements) == 1:  # as rows of a loop mostly are
                    lent.leave_as_it_is()
                    return
                if is_lost(connection) or (end.error is not None and end.error.ends_call):
                    break
            else:
                if connection.is_in_transaction():
                    await _roll_back(connection)
                    ends.append(StatementEnd(error=_OPEN_TRANSACTION))


async def _roll_back(connection: Connection) -> None:
    with contextlib.suppress(*DRIVER_ERRORS):
        await connection.execute("ROLLBACK")
