"""Gives up an attempt whose worker is silent, unless it was heard of since."""

from __future__ import annotations

from noetl_core.catalog import to_draft
from noetl_core.commands.events import CommandAbandoned
from noetl_core.commands.state import Command
from noetl_core.envelope import Draft
from noetl_core.errors import AlreadyTerminal, ExecutionIsPaused, NotFound, VersionConflict
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State
from noetl_core.timestamps import format_time

from noetl_planner.application.asks import Abandon


def silent_command(state: State, ask: Abandon) -> Command:
    """The attempt as it was seen; raises `VersionConflict` if something has happened to it since."""
    command = state.commands.get(ask.command_id)
    if state.execution.status.is_final:
        raise AlreadyTerminal(str(state.execution.execution_id))
    if state.execution.status is ExecutionStatus.PAUSED:  # what follows would be held, for each item of a loop
        raise ExecutionIsPaused(str(state.execution.execution_id))
    if command is None:
        raise NotFound("command", ask.command_id, code="command.not_found")
    if not command.is_open or command.aggregate_version != ask.expected_aggregate_version:
        raise VersionConflict(
            subject=f"command {ask.command_id}",
            expected=ask.expected_aggregate_version,
            current=command.aggregate_version,
        )
    return command


def abandonment(command: Command, ask: Abandon, *, max_attempts: int) -> Draft:
    """The event; the log refuses it while the lease lasts by PostgreSQL's clock."""
    abandoned = CommandAbandoned(
        **command.of_command,
        previous_owner=command.worker_id,
        reclaimer=ask.reclaimer,
        prior_lease_until=format_time(ask.lease_until),
        previous_attempt=command.attempt,
        max_attempts=max_attempts,
        **command.of_item,
    )
    return to_draft(
        abandoned,
        idempotency_key=f"command/{command.command_id}/end",
        expected_aggregate_version=ask.expected_aggregate_version,
        not_before=ask.lease_until,
        trace=command.trace,
    )
