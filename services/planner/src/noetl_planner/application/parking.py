"""Commands that wait for a child without a worker, and children whose end such a command waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from noetl_core.append import Appended, AppendRequest
from noetl_core.catalog import to_draft
from noetl_core.children.ending import is_about_parent, with_parent
from noetl_core.children.events import CommandParked
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.envelope import Draft
from noetl_core.errors import NoetlError
from noetl_core.executions.state import Execution
from noetl_core.fold import State
from noetl_core.ports.event_log import EventLog

from noetl_planner.application.asks import Ask, Claim, Park


def asks_for_parked(state: State, asks: Iterable[Ask]) -> bool:
    """Whether somebody wants a command that waits, as far as is known here: a wake-up may overtake its answer."""
    wanted = (state.commands.get(ask.command_id) for ask in asks if isinstance(ask, Claim))
    return any(command is not None and command.status is CommandStatus.PARKED for command in wanted)


def is_repeated(known: Command | None, ask: Park) -> bool:
    """Whether the command was parked by this ask before, and only the answer was lost."""
    parked = known.parked if known is not None and known.is_open else None
    return parked is not None and parked.call_id == ask.call.call_id


def parked_draft(command: Command, ask: Park) -> Draft:
    """The fact that the command waits; one call is parked once in each attempt."""
    parked = CommandParked(
        **command.of_command,
        worker_id=ask.worker.worker_id,
        call_id=ask.call.call_id,
        child_execution_id=ask.call.child_execution_id,
        payload_ref=ask.call.pipeline,
        timeout_seconds=ask.timeout_seconds,
    )
    key = f"command/{command.command_id}/parked/{ask.call.call_id}"
    return to_draft(parked, idempotency_key=key, trace=command.trace)


async def append_with_parent(
    log: EventLog, alone: AppendRequest, execution: Execution, *, work_subject: Callable[[str, str], str]
) -> tuple[Appended, ...]:
    """Append, and resume the call that waits if this ends the execution; a parent that has ended waits no more.

    Answered are the drafts of the execution's own stream.
    """
    try:
        appended = await log.append(with_parent(alone, execution, work_subject=work_subject))
    except NoetlError as refusal:
        if not is_about_parent(refusal, execution):
            raise
        appended = await log.append(alone)
    return appended[: len(alone.streams[0].drafts)]
