"""The last rows of an execution without what differs from run to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.likeness.places import Places
from noetl_core.surfaces.shapes import Row, Surface
from noetl_core.surfaces.surface_fold import Rows

_FIELDS: Final[Mapping[Surface, tuple[str, ...]]] = {
    Surface.STAGES: ("step", "activation", "kind", "status", "total", "max_in_flight", "engine", "pool"),
    Surface.COMMANDS: ("status", "pool"),
    Surface.LOOPS: ("step", "activation", "mode", "status", "total", "begun", "success", "failed", "breaks"),
    Surface.BUSINESS_OBJECTS: ("status", "version", "attributes", "deleted", "payload_refs", "overflows"),
}
"""What is compared; frames are compared by the rows that they committed."""


def row_accounts(rows: Rows, places: Places) -> dict[str, JsonValue]:
    """By surface and place."""
    return {f"{surface} {place}": row for surface in Surface for place, row in _of(surface, rows, places)}


def _of(surface: Surface, rows: Rows, places: Places) -> Iterator[tuple[str, JsonObject]]:
    for key, row in rows.get(surface, {}).items():
        match surface:
            case Surface.EXECUTION:
                yield str(row.get("path", "")), _execution(row)
            case Surface.COMMANDS if not row["internal"] and row["command_id"] not in places.abandoned:
                yield str(places.commands.get(row["command_id"], key)), _chosen(surface, row)
            case Surface.STAGES | Surface.LOOPS:
                yield f"{row['step']}#{row['activation']}", _chosen(surface, row)
            case Surface.BUSINESS_OBJECTS:
                yield key, _chosen(surface, row)
            case _:
                pass


def _chosen(surface: Surface, row: Row) -> JsonObject:
    return {name: row[name] for name in _FIELDS[surface] if name in row}


def _execution(row: Row) -> JsonObject:
    state = row["state"]
    steps: Mapping[str, Mapping[str, Any]] = state.get("steps", {})
    error = row.get("error")
    return {
        "status": row["status"],
        "version": row["version"],
        "error": {name: error[name] for name in ("code", "step") if name in error} if error else None,
        "steps": {name: _step(step) for name, step in steps.items()},
        "variables": state.get("variables", {}),
        "stored variables": {name: ref.get("sha256") for name, ref in state.get("variable_refs", {}).items()},
        "unknown_events": row["unknown_events"],
    }


def _step(step: Mapping[str, Any]) -> JsonObject:
    result = step.get("result") or {}
    reference = result.get("reference") or {}
    return {
        "status": step["status"],
        "activation": step.get("activation", 0),
        "result": {"status": result.get("status"), "sha256": reference.get("sha256")} if result else None,
    }
