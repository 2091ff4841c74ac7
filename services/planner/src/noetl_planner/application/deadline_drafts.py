"""The next deadline of an execution that has passed, as the event that says so."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from noetl_core.catalog import to_draft
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.state import open_deadlines
from noetl_core.envelope import Draft
from noetl_core.fold import State
from noetl_core.timestamps import format_time

MAX_A_TURN: Final = 100
"""Many commands may wait until the same moment; what is left is found by the next look."""


def next_passed(state: State, *, through: datetime) -> Draft | None:
    """The earliest open deadline up to a time; the log refuses it before PostgreSQL's clock is there."""
    due = (one for one in open_deadlines(state.execution, state.commands) if one.at <= through)
    deadline = min(due, default=None)
    if deadline is None:
        return None
    passed = DeadlinePassed(
        what=deadline.what.value,
        deadline=format_time(deadline.at),
        step=deadline.step,
        activation=deadline.activation,
        command_id=deadline.command_id,
    )
    trace = state.execution.trace
    return to_draft(passed, idempotency_key=deadline.key, not_before=deadline.at, trace=trace)
