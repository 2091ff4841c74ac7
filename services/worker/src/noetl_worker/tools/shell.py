"""The shell tool: commands of /bin/sh, one after the other, in a child process that is killed with all they start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import Overloaded, Unavailable
from noetl_core.playbook.expressions import TemplateFailed

from noetl_worker.application.outcome import ErrorKind, Outcome, Printed
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed, misconfigured, without_secrets
from noetl_worker.tools.python_call import Answered, CallEnd, Died, TimedOut
from noetl_worker.tools.python_pool import PythonCode, PythonPool
from noetl_worker.tools.tool_config import ToolConfig

DEFAULT_TIMEOUT_SECONDS = 600.0
MAX_OUTPUT_BYTES = 1024 * 1024
"""Of each stream, the end is kept."""
STOP_AT_ERRORS = ("-e",)

_PROGRAM = """
import subprocess
code = 0
variables = {**os.environ, **input_data["variables"]}
for command in input_data["commands"]:
    line = ["/bin/sh", *input_data["options"], "-c", command, *input_data["arguments"]]
    code = subprocess.run(line, stdin=subprocess.DEVNULL, env=variables).returncode
    if code:
        break
result = code if code >= 0 else 128 - code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What the shell is given."""

    texts: Sequence[str]
    options: Sequence[str] = ()
    arguments: Sequence[str] = ()
    """From `$0` on."""
    variables: Mapping[str, str] = field(default_factory=dict)


class ShellTool:
    """Runs `cmds` with the few variables that the pool's children have."""

    def __init__(self, pool: PythonPool, *, default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._pool = pool
        self._default_timeout_seconds = default_timeout_seconds

    async def run(self, call: ToolCall) -> Outcome:
        """`{stdout, stderr, exit_code}`; a command that fails is the last one, and an error that keeps them."""
        config = ToolConfig(call)
        try:
            commands = _commands(config)
        except CallFailed as exc:
            return exc.outcome
        return await self.execute(config, commands)

    async def execute(self, config: ToolConfig, commands: Commands) -> Outcome:
        """Run commands that somebody has made ready."""
        timeout_seconds = config.timeout_seconds(default=self._default_timeout_seconds)
        code = PythonCode(
            source=_PROGRAM,
            inputs={
                "commands": [*commands.texts],
                "options": [*commands.options],
                "arguments": [*commands.arguments],
                "variables": {**commands.variables},
            },
        )
        try:
            end = await self._pool.run(owner=config.owner, code=code, timeout_seconds=timeout_seconds)
        except Overloaded as exc:
            return Outcome.failed(kind=ErrorKind.RATE_LIMIT, code="SHELL_POOL_FULL", message=exc.message)
        except Unavailable as exc:
            return Outcome.failed(kind=ErrorKind.UNKNOWN, code="SHELL_UNAVAILABLE", message=exc.message, retryable=True)
        outcome = replace(_outcome(end, timeout_seconds=timeout_seconds), printed=end.printed)
        outcome = without_secrets(outcome, config.secrets)
        return replace(outcome, data=config.secrets.hide_in_data(outcome.data))


def _commands(config: ToolConfig) -> Commands:
    """The commands, and how the shell is told to treat them.

    A text is one program, in which the first command that fails ends it; those of a list are programs each.
    """
    written = config.call.config.get("cmds")
    value = rendered_or_as_written(config, written) if isinstance(written, str) else written
    if isinstance(value, str) and value.strip():
        return Commands(texts=[value], options=STOP_AT_ERRORS)
    if isinstance(value, list):
        is_written = isinstance(written, list)
        commands = [
            rendered_or_as_written(config, item) if is_written and isinstance(item, str) else item for item in value
        ]
        texts = [command for command in commands if isinstance(command, str)]
        if texts and len(texts) == len(commands):
            return Commands(texts=texts)
    raise misconfigured("a shell step needs `cmds`, a text or a list of texts")


def rendered_or_as_written(config: ToolConfig, text: str) -> JsonValue:
    """Text of a shell, which may be a template."""
    try:
        return config.call.render(text)
    except TemplateFailed:
        return text  # a shell has braces of its own; what is no template runs as it is written


def _outcome(end: CallEnd, *, timeout_seconds: float) -> Outcome:
    match end:
        case Answered(answer=answer, printed=printed) if isinstance(answer.data, int):
            result = _result(printed, answer.data)
            if answer.data == 0:
                return Outcome(data=result)
            return Outcome.failed(
                kind=ErrorKind.UNKNOWN,
                code=f"SHELL_EXIT_{answer.data}",
                message=_message(printed, answer.data),
                data=result,
            )
        case Answered(answer=answer, printed=printed):
            message = f"the shell could not be started: {(answer.error or {}).get('message')}"
            return Outcome.failed(
                kind=ErrorKind.UNKNOWN, code="SHELL_UNAVAILABLE", message=message, data=_result(printed, None)
            )
        case TimedOut(printed=printed):
            return Outcome.failed(
                kind=ErrorKind.TIMEOUT,
                code="TIMEOUT",
                message=f"the commands were still running after {timeout_seconds:g} s and were killed",
                data=_result(printed, None),
            )
        case Died(reason=reason, printed=printed):
            return Outcome.failed(
                kind=ErrorKind.UNKNOWN,
                code="SHELL_DIED",
                message=f"the process that ran the commands ended: {reason}",
                data=_result(printed, None),
            )


def _result(printed: Printed, exit_code: int | None) -> JsonObject:
    return {"stdout": printed.stdout, "stderr": printed.stderr, "exit_code": exit_code}


def _message(printed: Printed, exit_code: int) -> str:
    last = next((line.strip() for line in reversed(printed.stderr.splitlines()) if line.strip()), "")
    return f"a command ended with exit code {exit_code}" + (f": {last[:300]}" if last else "")
