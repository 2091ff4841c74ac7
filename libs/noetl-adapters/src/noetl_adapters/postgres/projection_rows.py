"""A folded execution as the row that the projection tables hold of it."""

from __future__ import annotations

from noetl_core.canonical import JsonObject, encode
from noetl_core.execution_view import execution_view, late_after
from noetl_core.ports.projection_store import ProjectedExecution


def execution_row(one: ProjectedExecution) -> JsonObject:
    """What `write_executions` takes of it: ids and times as text, and what is stored as JSON as the text of that."""
    state, view = one.state, execution_view(one.state)
    watermark, deadline = state.event_time_watermark or view.start_time, late_after(state)
    return {
        "execution_id": str(view.execution_id),
        "tenant_id": view.tenant_id,
        "organization_id": view.organization_id,
        "shard": one.shard,
        "path": view.path,
        "version": view.version,
        "catalog_id": view.catalog_id,
        "parent_execution_id": view.parent_execution_id or None,
        "status": view.status,
        "last_event_type": view.last_event_type,
        "last_node_name": view.last_node_name or None,
        "start_time": view.start_time.isoformat(),
        "end_time": view.end_time.isoformat() if view.end_time is not None else None,
        "error": encode(dict(view.error)).decode() if view.error is not None else None,
        "state": encode(view.state).decode(),
        "stream_version": view.stream_version,
        "last_event_id": str(state.last_event_id),
        "event_time_watermark": watermark.isoformat(),
        "projector_epoch": one.epoch,
        "base_version": one.base_version,
        "next_deadline": deadline.isoformat() if deadline is not None else None,
        "upcasters": one.upcasters,
    }
