"""The script tool: runs a file, Python as the python tool runs code, or commands as the shell tool runs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from noetl_core.canonical import JsonObject, JsonValue

from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed, failed, misconfigured
from noetl_worker.tools.plugins import UnavailableTool
from noetl_worker.tools.python import PythonTool
from noetl_worker.tools.script_source import ScriptSources
from noetl_worker.tools.shell import STOP_AT_ERRORS, Commands, ShellTool, rendered_or_as_written
from noetl_worker.tools.tool_config import ToolConfig, as_text

SHELL_SUFFIX = ".sh"
MAX_SHELL_BYTES = 120 * 1024
"""What Linux takes as one argument of a program is a little more."""
JOB = "a script with `image` is a Job of Kubernetes, which this worker has no plug-in for"

_ONLY_SHELL = "`args` and `env` are for scripts of the shell (.sh); python has `input`"


class ScriptTool:
    """The suffix of the name says what a script is written in; without one that is known it is Python."""

    def __init__(self, python: PythonTool, shell: ShellTool | UnavailableTool, scripts: ScriptSources) -> None:
        self._python = python
        self._shell = shell
        self._scripts = scripts

    async def run(self, call: ToolCall) -> Outcome:
        """What the python tool or the shell tool makes of it."""
        if call.config.get("image") is not None:
            return await UnavailableTool(JOB).run(call)
        try:
            section = _section(call)
            config = ToolConfig(replace(call, config={**call.config, "script": section}))
            path = _path(config)
            if path.suffix.lower() == SHELL_SUFFIX:
                return await self._run_shell(config, path.name)
            if "args" in config or "env" in config:
                raise misconfigured(_ONLY_SHELL)
        except CallFailed as exc:
            return exc.outcome
        return await self._python.run(replace(call, config={"script": section}))

    async def _run_shell(self, config: ToolConfig, name: str) -> Outcome:
        if isinstance(self._shell, UnavailableTool):
            return await self._shell.run(config.call)
        arguments, variables = _arguments(config), _variables(config)
        written = await self._scripts.load(config)
        rendered = rendered_or_as_written(config, written)
        text = rendered if isinstance(rendered, str) else written
        if len(text.encode()) > MAX_SHELL_BYTES:
            message = f"the script {name!r} has more than {MAX_SHELL_BYTES} bytes, too many for a shell"
            raise failed(ErrorKind.STORAGE_QUOTA, "SCRIPT_TOO_LARGE", message)
        commands = Commands(texts=[text], options=STOP_AT_ERRORS, arguments=[name, *arguments], variables=variables)
        return await self._shell.execute(config, commands)


def _section(call: ToolCall) -> JsonObject:
    """Where the script is; the credential of the call opens that place, unless the place names another."""
    written = call.config.get("script")
    if not isinstance(written, dict):
        raise misconfigured("a script step needs `script`, a file or where it is")
    source = written.get("source")
    has_own = isinstance(source, dict) and source.get("auth") is not None
    return dict(written) if call.auth is None or has_own else {"auth": call.auth, **written}


def _path(config: ToolConfig) -> PurePosixPath:
    """What its name is; code that stands in the playbook has none."""
    section = config.below("script")
    source = section.call.config.get("source")
    if isinstance(source, dict) and source.get("type") == "inline":
        return PurePosixPath()
    uri = section.text("uri") or ""
    is_web = uri.lower().startswith(("http://", "https://"))
    return PurePosixPath(unquote(urlsplit(uri).path) if is_web else uri)


def _arguments(config: ToolConfig) -> list[str]:
    value = config.value("args")
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [as_text(one, "args") or "" for one in values]


def _variables(config: ToolConfig) -> dict[str, str]:
    """A map, or a list of {name, value} as Kubernetes has it."""
    value = config.value("env")
    if isinstance(value, list):
        value = dict(_variable(one) for one in value)
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise misconfigured("`env` is neither a map nor a list of {name, value}")
    for name in value:
        if not name or "=" in name:
            raise misconfigured(f"{name!r} in `env` is no name of a variable")
    return {name: as_text(one, f"env.{name}") or "" for name, one in value.items()}


def _variable(written: JsonValue) -> tuple[str, JsonValue]:
    if not isinstance(written, dict) or not isinstance(written.get("name"), str):
        raise misconfigured("`env` is neither a map nor a list of {name, value}")
    return str(written["name"]), written.get("value")
