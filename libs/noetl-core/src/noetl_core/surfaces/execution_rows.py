"""The row of an execution: what queries list it by, and the facts by which it is routed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.canonical import JsonObject
from noetl_core.execution_view import start_time
from noetl_core.fold import State
from noetl_core.state_json import state_object
from noetl_core.surfaces.shapes import without_absent
from noetl_core.timestamps import format_time
from noetl_core.values import replace

ROUTING_FACTS: Final = (
    "answered", "arrivals", "cascades", "children", "deadline", "depth", "failed_chunk", "failure", "held",
    "inherited", "parent_call", "pauses", "redrive_of", "redriven_rows", "released", "steps", "streams", "trace",
    "variable_refs", "variables", "workload",
)  # fmt: skip
"""What `state` of the row holds of a stored state; commands, loops and stages have surfaces of their own.

Commands above all: which of the ended ones a stored state remembers depends on when it was pruned.
"""


def routing_facts(state: Mapping[str, Any]) -> JsonObject:
    """The part of a state's JSON that the row of its execution holds; of live rows and of replayed ones alike."""
    return {name: state[name] for name in ROUTING_FACTS if name in state}


def execution_row(state: State) -> JsonObject:
    """An execution as it is at the version of its state."""
    execution = state.execution
    alone = replace(state, commands={}, execution=replace(execution, loops={}, stages={}))
    watermark = state.event_time_watermark
    return without_absent(
        {
            "execution_id": str(execution.execution_id),
            "tenant_id": execution.tenant_id,
            "organization_id": execution.organization_id,
            "path": execution.path,
            "version": execution.version,
            "catalog_id": execution.catalog_id,
            "parent_execution_id": execution.parent_execution_id,
            "status": execution.status.value,
            "start_time": format_time(start_time(state)),
            "end_time": format_time(execution.ended_at) if execution.ended_at else None,
            "error": dict(execution.error) if execution.error is not None else None,
            "state": routing_facts(state_object(alone)),
            "stream_version": state.stream_version,
            "last_event_id": str(state.last_event_id),
            "last_event_type": state.last_event_type,
            "last_node_name": state.last_node_name,
            "event_time_watermark": format_time(watermark) if watermark else None,
            "unknown_events": state.unknown_events,
        }
    )
