"""A folded execution as the row that the projection tables hold of it."""

from __future__ import annotations

from typing import Any

from noetl_core.canonical import encode
from noetl_core.execution_view import execution_view, late_after
from noetl_core.ports.projection_store import ProjectedExecution

EXECUTION_COLUMNS = 21


def execution_row(one: ProjectedExecution) -> tuple[Any, ...]:
    """The parameters of `write_executions`, in their order."""
    state, view = one.state, execution_view(one.state)
    return (
        view.execution_id,
        view.tenant_id,
        view.organization_id,
        one.shard,
        view.path,
        view.version,
        view.catalog_id,
        int(view.parent_execution_id) if view.parent_execution_id else None,
        view.status,
        view.last_event_type,
        view.last_node_name or None,
        view.start_time,
        view.end_time,
        encode(dict(view.error)).decode() if view.error is not None else None,
        encode(view.state).decode(),
        view.stream_version,
        state.last_event_id,
        state.event_time_watermark or view.start_time,
        one.epoch,
        one.base_version,
        late_after(state),
    )
