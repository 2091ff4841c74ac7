"""What a package needs that provides a tool: everything else of the worker may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from noetl_core.ports.payloads import PayloadStore
from noetl_core.ports.tables import Tables

from noetl_worker.application.credentials import Auth, Credential, Credentials, resolve_auth
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import Tool, ToolCall

__all__ = [
    "ENTRY_POINT_GROUP",
    "Auth",
    "Credential",
    "Credentials",
    "ErrorKind",
    "Outcome",
    "Tool",
    "ToolCall",
    "ToolEnvironment",
    "ToolFactory",
    "resolve_auth",
]

ENTRY_POINT_GROUP = "noetl.tools"
"""In `[project.entry-points."noetl.tools"]` of a package: the kind, and the factory that makes its tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnvironment:
    """What the worker gives a tool when it makes it."""

    settings: Mapping[str, str] = field(repr=False)
    """Variables `NOETL_TOOL_<KIND>_<NAME>` of the worker's environment, by their names in lower case."""
    payloads: PayloadStore
    tables: Tables
    """The form in which tabular results are stored."""
    credentials: Credentials


ToolFactory = Callable[[ToolEnvironment], Tool]
"""Called once when the worker starts. A tool that is an async context manager is entered then, and left at the end."""
