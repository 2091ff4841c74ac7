"""Tools of other packages: found by their entry points, made, and kept from harming the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from noetl_core.playbook.expressions import TemplateFailed
from noetl_servicekit.logging import get_logger

from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import Tool, ToolCall
from noetl_worker.tools.plugin import ENTRY_POINT_GROUP, ToolEnvironment

DEFAULT_TIMEOUT_SECONDS = 600.0
SETTINGS_PREFIX = "NOETL_TOOL_"

_ENTER_SECONDS = 30.0

logger = get_logger()


class EnvironmentFor(Protocol):
    """Makes the environment of a kind."""

    def __call__(self, kind: str) -> ToolEnvironment:
        """Only its own settings are in it."""
        ...


def installed_plugins() -> tuple[EntryPoint, ...]:
    """What the packages of this Python provide, in an order that does not depend on the file system."""
    found = entry_points(group=ENTRY_POINT_GROUP)
    return tuple(sorted(found, key=lambda point: (point.name, point.value)))


async def load_plugins(
    plugins: Iterable[EntryPoint],
    *,
    taken: Collection[str],
    environment: EnvironmentFor,
    stack: AsyncExitStack,
    default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> dict[str, Tool]:
    """A tool for each plug-in; one that is broken answers every call by saying so, and stops nobody else."""
    tools: dict[str, Tool] = {}
    for point in plugins:
        kind, package = point.name, point.dist.name if point.dist is not None else point.value
        if kind in taken or kind in tools:
            reason = f"the kind {kind!r} is provided already"
            logger.error("worker.tool_plugin_failed", kind=kind, package=package, reason=reason)
            continue
        try:
            tool: Tool = point.load()(environment(kind))
            if isinstance(tool, AbstractAsyncContextManager):
                async with asyncio.timeout(_ENTER_SECONDS):
                    tool = await stack.enter_async_context(tool)
            if not callable(getattr(tool, "run", None)):
                raise TypeError(f"its factory gave a {type(tool).__name__}, which has no `run`")
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}"
            logger.error("worker.tool_plugin_failed", kind=kind, package=package, reason=reason)
            tools[kind] = UnavailableTool(f"the plug-in {package!r} for {kind!r} could not be loaded: {reason}")
        else:
            logger.info("worker.tool_plugin_loaded", kind=kind, package=package)
            tools[kind] = GuardedTool(tool, package=package, default_timeout_seconds=default_timeout_seconds)
    return tools


def settings_of(kind: str, variables: Mapping[str, str]) -> dict[str, str]:
    """`NOETL_TOOL_HELLO_GREETING` is `greeting` of the kind hello; dashes and dots are underscores there."""
    prefix = f"{SETTINGS_PREFIX}{kind.upper().replace('-', '_').replace('.', '_')}_"
    return {name.removeprefix(prefix).lower(): value for name, value in variables.items() if name.startswith(prefix)}


class UnavailableTool:
    """A kind that this worker knows of and cannot run."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def run(self, call: ToolCall) -> Outcome:
        """Always the reason."""
        return Outcome.failed(kind=ErrorKind.UNKNOWN, code="TOOL_UNAVAILABLE", message=self._reason)


class GuardedTool:
    """A tool of somebody else's: its time is limited, and what it raises is an outcome."""

    def __init__(self, tool: Tool, *, package: str, default_timeout_seconds: float) -> None:
        self._tool = tool
        self._package = package
        self._default_timeout_seconds = default_timeout_seconds

    async def run(self, call: ToolCall) -> Outcome:
        """The tool's outcome, if it comes to one."""
        seconds = self._default_timeout_seconds if call.timeout_seconds is None else call.timeout_seconds
        try:
            with CallLimit(seconds) as limit:
                outcome: object = await self._tool.run(call)
        except TemplateFailed:
            raise
        except Exception as exc:
            if isinstance(exc, TimeoutError) and limit.expired():
                message = f"the tool was still running after {seconds:g} s and was stopped"
                return Outcome.failed(kind=ErrorKind.TIMEOUT, code="TIMEOUT", message=message)
            logger.exception("worker.tool_plugin_crashed", kind=call.kind, package=self._package)
            # The text of the exception is in the log: nobody knows what of it is secret.
            message = f"the plug-in {self._package!r} failed with {type(exc).__name__}"
            return Outcome.failed(kind=ErrorKind.UNKNOWN, code="PLUGIN_FAILED", message=message)
        if isinstance(outcome, Outcome):
            return outcome
        message = f"the plug-in {self._package!r} gave a {type(outcome).__name__} instead of an outcome"
        return Outcome.failed(kind=ErrorKind.UNKNOWN, code="PLUGIN_FAILED", message=message)
