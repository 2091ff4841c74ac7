"""An execution and its commands as queries show them: a function of the folded state, for rows and answers alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from noetl_core.commands.state import Command
from noetl_core.deadlines.state import next_deadline
from noetl_core.executions.left_open import unfinished_loops
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State, prune
from noetl_core.ports.projections import ExecutionView
from noetl_core.state_json import state_object
from noetl_core.upcasting.releases import UPCASTERS

CASCADE_TIME = timedelta(seconds=15)
"""Longer than ending what an execution leaves open takes, as long as nothing goes wrong."""

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def execution_view(state: State, *, upcasters: str = UPCASTERS.digest) -> ExecutionView:
    """What the row of an execution says; `upcasters` is the digest of the registry that it was folded with."""
    execution = state.execution
    return ExecutionView(
        execution_id=execution.execution_id,
        tenant_id=execution.tenant_id,
        organization_id=execution.organization_id,
        path=execution.path,
        version=execution.version,
        catalog_id=execution.catalog_id,
        status=execution.status.value,
        last_event_type=state.last_event_type,
        last_node_name=state.last_node_name,
        start_time=start_time(state),
        end_time=execution.ended_at,
        error=execution.error,
        state=state_object(prune(state)),
        stream_version=state.stream_version,
        parent_execution_id=execution.parent_execution_id,
        upcasters=upcasters,
    )


def start_time(state: State) -> datetime:
    """A stream need not begin with playbook.initialized; then its newest event is the best that is known."""
    return state.execution.started_at or state.event_time_watermark or _NEVER


def silent_after(state: State, command: Command) -> datetime | None:
    """When nothing heard of the command means that its worker is gone; None while nobody waits for it.

    An ended execution waits for nobody: its open commands are not abandoned, because nothing may follow the end. Nor
    are those of a paused one, of which there may be as many as items of a loop: their workers may still be heard of.
    """
    status = state.execution.status
    if status.is_final or status is ExecutionStatus.PAUSED or not command.is_open:
        return None
    return command.lease_until


def late_after(state: State) -> datetime | None:
    """When the execution, or something in it, will have taken too long; None while nothing has a deadline.

    One that has ended is late when something of it has not for a while: its family, if it was cancelled with it, or
    a loop, which its planner closes after an end from outside.
    """
    execution = state.execution
    if execution.ended_at is not None:
        has_open = execution.cascades or bool(unfinished_loops(state))
        return execution.ended_at + CASCADE_TIME if has_open else None
    return next_deadline(state.execution, state.commands)


def changed_commands(before: State, after: State) -> tuple[Command, ...]:
    """Commands whose rows differ: those that a fact was about, and all that are open while nobody waits for them."""
    turned = _waits(before) is not _waits(after)
    return tuple(
        command
        for command_id, command in after.commands.items()
        if before.commands.get(command_id) is not command or (turned and command.is_open)
    )


def _waits(state: State) -> bool:
    return state.execution.status is ExecutionStatus.RUNNING
