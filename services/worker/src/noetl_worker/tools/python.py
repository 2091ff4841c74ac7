"""The python tool: gets the code, renders it and its inputs, has a child process run them, tells how that ended."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace

from noetl_core.canonical import JsonValue
from noetl_core.errors import Overloaded, Unavailable
from noetl_core.playbook.expressions import TemplateFailed

from noetl_worker.application.outcome import ErrorKind, Outcome, Printed
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed
from noetl_worker.tools.python_call import Answered, CallEnd, Died, TimedOut
from noetl_worker.tools.python_pool import Owner, PythonCode, PythonPool
from noetl_worker.tools.script_source import ScriptSources
from noetl_worker.tools.tool_config import ToolConfig

_KINDS = frozenset(kind.value for kind in ErrorKind)


class PythonTool:
    """Runs `script`, else `code_b64`, else `code`, in the pool."""

    def __init__(self, pool: PythonPool, scripts: ScriptSources | None = None) -> None:
        self._pool = pool
        self._scripts = scripts

    async def run(self, call: ToolCall) -> Outcome:
        """The result of the user's code; only an exception, a timeout or a dead child is an error."""
        try:
            source = _rendered(call, await self._source(call))
        except ValueError as exc:
            return Outcome.failed(kind=ErrorKind.SCHEMA, code="PY_NO_CODE", message=str(exc))
        except CallFailed as exc:
            return exc.outcome
        libs = call.render(call.config.get("libs"))
        code = PythonCode(
            source=source,
            inputs=call.rendered_input(),
            # All results so far: not sent to code that cannot be asking for them.
            context=call.all_names if "context" in source or "main" in source else {},
            libs=libs if isinstance(libs, Mapping) else {},
        )
        owner = Owner(tenant_id=call.tenant_id, organization_id=call.organization_id)
        try:
            end = await self._pool.run(owner=owner, code=code, timeout_seconds=call.timeout_seconds)
        except Overloaded as exc:
            return Outcome.failed(kind=ErrorKind.RATE_LIMIT, code="PY_POOL_FULL", message=exc.message)
        except Unavailable as exc:
            return Outcome.failed(
                kind=ErrorKind.UNKNOWN, code="PY_CHILD_UNAVAILABLE", message=exc.message, retryable=True
            )
        return replace(_outcome(end, timeout_seconds=call.timeout_seconds), printed=_shown(end))

    async def _source(self, call: ToolCall) -> str:
        if call.config.get("script") is not None and self._scripts is not None:
            return await self._scripts.load(ToolConfig(call))
        return _written(call)


def _written(call: ToolCall) -> str:
    encoded, source = call.render(call.config.get("code_b64")), call.config.get("code")
    if isinstance(encoded, str) and encoded:
        try:
            source = base64.b64decode("".join(encoded.split()), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as exc:
            raise ValueError("code_b64 is not base64 of UTF-8 text") from exc
    if not isinstance(source, str):
        raise ValueError("a python step needs code or code_b64")
    return source


def _rendered(call: ToolCall, source: str) -> str:
    try:
        rendered = call.render(source)
    except TemplateFailed:
        return source  # Python has braces of its own; what is no template runs as it is written
    return rendered if isinstance(rendered, str) else source


def _outcome(end: CallEnd, *, timeout_seconds: float | None) -> Outcome:
    match end:
        case Answered(answer=answer, printed=printed) if answer.error is None:
            return Outcome(data=answer.data, py=_facts(printed))
        case Answered(answer=answer, printed=printed):
            error = answer.error or {}
            kind = str(error.get("kind"))
            return Outcome.failed(
                kind=ErrorKind(kind) if kind in _KINDS else ErrorKind.UNKNOWN,
                code=str(error.get("code")),
                message=str(error.get("message")),
                retryable=error.get("retryable") is True,
                py=_facts(printed, traceback=str(error.get("traceback") or "")),
            )
        case TimedOut(printed=printed):
            return Outcome.failed(
                kind=ErrorKind.TIMEOUT,
                code="TIMEOUT",
                message=f"the code was still running after {timeout_seconds:g} s and was stopped",
                py=_facts(printed),
            )
        case Died(reason=reason, printed=printed):
            return Outcome.failed(
                kind=ErrorKind.UNKNOWN,
                code="PY_CHILD_DIED",
                message=f"the process that ran the code ended: {reason}",
                py=_facts(printed),
            )


def _shown(end: CallEnd) -> Printed:
    """What a terminal would have shown: an exception that nobody caught ends up there too."""
    error = end.answer.error if isinstance(end, Answered) else None
    if error is None:
        return end.printed
    exception = f"{str(error.get('code')).removeprefix('PY_')}: {error.get('message')}"
    lines = [str(error.get("traceback") or ""), exception]
    shown = "".join(f"{line}\n" for line in lines if line)
    return replace(end.printed, stderr=end.printed.stderr + shown)


def _facts(printed: Printed, *, traceback: str = "") -> Mapping[str, JsonValue] | None:
    facts = {"stdout": printed.stdout, "stderr": printed.stderr, "traceback": traceback}
    return {name: text for name, text in facts.items() if text} or None
