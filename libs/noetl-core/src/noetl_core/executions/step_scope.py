"""What tasks have set for their activation, as its `set` and arcs see it: told beside the result, if they read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.canonical import JsonObject
from noetl_core.executions.names import LOADED
from noetl_core.playbook.control import references_after
from noetl_core.playbook.model import Step
from noetl_core.playbook.views import WithheldView
from noetl_core.ports.commands import Variables

SCOPE: Final = "step"
"""Its name in templates, and in the context of a result."""


def scope_names_read(step: Step, names: Mapping[str, Any]) -> list[str]:
    """Which of these names control expressions read after the step; nobody is told of the others."""
    paths = references_after(step)
    read = {path[0] for path in paths if path} | {path[1] for path in paths if len(path) > 1 and path[0] == SCOPE}
    return [name for name in names if name in read or (SCOPE,) in paths]


def scope_told(scope: Variables) -> JsonObject:
    """The form that the context of a result has."""
    told: JsonObject = {"values": dict(scope.values)}
    if scope.refs:
        told["refs"] = {name: ref.to_json() for name, ref in scope.refs.items()}
    return told


def scope_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The scope that a result was told with; what is stored can be named here, and read where it was loaded."""
    told = (result.get("context") or {}).get(SCOPE) or {}
    stored = {
        name: ref[LOADED] if LOADED in ref else WithheldView(f"{SCOPE}.{name}")
        for name, ref in (told.get("refs") or {}).items()
    }
    return {**(told.get("values") or {}), **stored}
