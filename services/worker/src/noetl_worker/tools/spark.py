"""The spark tool: a query or PySpark code over earlier results, which executors read and whose rows they store."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from noetl_core.canonical import JsonValue
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE
from noetl_core.ports.spark import SparkCall, SparkEnd, SparkFailure, SparkSessions
from noetl_servicekit.chunk_rows import LoadRows, chunk_refs

from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.outcome import ErrorKind, Outcome, Printed
from noetl_worker.application.partitions import PARTITION_TABLE
from noetl_worker.application.sinks import ChunkSink
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed, failed, misconfigured, without_secrets
from noetl_worker.tools.spark_inputs import SparkInputs
from noetl_worker.tools.tool_config import ToolConfig

DEFAULT_TIMEOUT_SECONDS = 600.0
SPARK_OFF = "the operator of this worker has switched Spark off (NOETL_SPARK_ENABLED)"
_KINDS = {kind.value: kind for kind in ErrorKind}


class SparkTool:
    """`sql`, or `code` with `main(spark, **inputs)`; rows pass by this process, unless they are streamed."""

    def __init__(
        self,
        sessions: SparkSessions,
        inputs: SparkInputs,
        rows: LoadRows,
        *,
        default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._sessions = sessions
        self._inputs = inputs
        self._rows = rows
        self._default_timeout_seconds = default_timeout_seconds
        self._numbers = itertools.count(1)

    async def run(self, call: ToolCall) -> Outcome:
        """The result with its rows by reference; what goes wrong is told in the words of SQL or Python."""
        rendered = call.rendered_input()
        config = ToolConfig(replace(call, names={**rendered, **call.all_names}, input={}))
        try:
            asked = await self._asked(call, config, rendered)
            end = await self._ran(asked, config.timeout_seconds(default=self._default_timeout_seconds))
            outcome = _outcome(end)
            if call.chunks is not None and outcome.error is None:
                outcome = await self._streamed(call, call.chunks, outcome)
        except CallFailed as exc:
            outcome = exc.outcome
        except NoetlError as exc:
            outcome = _not_available(exc)
        return without_secrets(outcome, config.secrets)

    async def _asked(self, call: ToolCall, config: ToolConfig, rendered: Mapping[str, JsonValue]) -> SparkCall:
        sql, code = config.text("sql"), _code(config)
        if bool(sql) == bool(code):
            raise misconfigured("a spark step needs `sql` or `code`, and not both")
        if config.secrets and any(text and config.secrets.hide(text) != text for text in (sql, code)):
            raise misconfigured("a spark step cannot have secrets: its rows are stored where nobody could hide them")
        inputs = await self._inputs.read(call, rendered, secrets=config.secrets, is_query=bool(sql))
        partition = call.names.get(PARTITION_TABLE)
        reduced = {"partitions": partition} if isinstance(partition, dict) and "partitions" not in rendered else {}
        return SparkCall(
            call_id=f"{call.execution_id}/{call.step}/{next(self._numbers)}",
            tenant_id=call.tenant_id,
            organization_id=call.organization_id,
            execution_id=str(call.execution_id),
            step=call.step,
            sql=sql or None,
            code=code or None,
            tables={**reduced, **inputs.tables},
            values=inputs.values,
        )

    async def _ran(self, asked: SparkCall, timeout_seconds: float) -> SparkEnd:
        try:
            await self._sessions.warm()  # a session that has to start first is no part of the call's time
        except Unavailable as exc:
            raise failed(ErrorKind.UNKNOWN, "SPARK_UNAVAILABLE", exc.message, retryable=True) from exc
        try:
            with CallLimit(timeout_seconds) as limit:
                return await self._sessions.run(asked)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"the call took longer than {timeout_seconds:g} s; its Spark jobs are cancelled"
            raise failed(ErrorKind.TIMEOUT, "TIMEOUT", message) from None

    async def _streamed(self, call: ToolCall, chunks: ChunkSink, outcome: Outcome) -> Outcome:
        """§5.5: rows are given out in chunks of the size that was asked for; the others stay bytes of one payload."""
        if not isinstance(outcome.data, dict):
            return outcome
        mark = outcome.data.get("rows")
        refs = chunk_refs(mark, tenant_id=call.tenant_id, organization_id=call.organization_id)
        async for rows in self._rows.in_chunks(refs, size=chunks.chunk_rows):
            await chunks.put(rows)
        return outcome


def _code(config: ToolConfig) -> str | None:
    """A template if it is one: Python has braces of its own, and what is no template runs as it is written."""
    written = config.call.config.get("code")
    if not isinstance(written, str):
        return None
    try:
        rendered = config.call.render(written)
    except TemplateFailed:
        return written
    return rendered if isinstance(rendered, str) else written


def _outcome(end: SparkEnd) -> Outcome:
    printed = Printed(stdout=end.stdout, stderr="") if end.stdout else None
    if end.failure is None:
        return Outcome(data=end.data, printed=printed)
    return _failure(end.failure, printed)


def _failure(failure: SparkFailure, printed: Printed | None) -> Outcome:
    lines: Mapping[str, JsonValue] | None = {"traceback": failure.lines} if failure.lines else None
    told = Outcome.failed(
        kind=_KINDS.get(failure.kind, ErrorKind.UNKNOWN),
        code=failure.code,
        message=failure.message,
        retryable=failure.retryable,
        py=lines,
    )
    return Outcome(error=told.error, py=told.py, printed=printed)


def _not_available(error: NoetlError) -> Outcome:
    message = f"an input could not be read or stored: {error.message}"
    return Outcome.failed(
        kind=ErrorKind.STORAGE_ACCESS, code=REFERENCE_NOT_AVAILABLE, message=message, retryable=error.retryable
    )
