"""A folded execution as rows: what the projection tables hold of it and of its commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noetl_core.canonical import encode
from noetl_core.execution_view import execution_view, late_after, silent_after
from noetl_core.ports.projection_store import ProjectedExecution

EXECUTION_COLUMNS = 21
COMMAND_COLUMNS = 15


def execution_row(one: ProjectedExecution) -> tuple[Any, ...]:
    """The first parameters of `write_batch`, in their order."""
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


def command_rows(one: ProjectedExecution) -> Iterator[tuple[Any, ...]]:
    """The other parameters of `write_batch`, in their order."""
    execution = one.state.execution
    for command in one.commands:
        yield (
            execution.execution_id,
            command.command_id,
            execution.tenant_id,
            execution.organization_id,
            command.step,
            command.activation,
            command.attempt,
            command.status.value,
            command.worker_id or None,
            silent_after(one.state, command),
            command.aggregate_version,
            command.issued_at,
            command.ended_at,
            command.trace or None,
            command.stream_version,
        )
