"""Calls that wait for children, as the fold of the parent sees them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from noetl_core.children.events import ChildStarted, CommandParked, CommandResumed, ExecutionCascaded
from noetl_core.children.state import ParentCall, ParkedCall, call_id
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.deadlines.decide import after_deadline
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.deadlines.state import open_deadlines
from noetl_core.executions.events import ExecutionCancelled, StepEntered, StepExited
from noetl_core.fold import State, empty, fold_all, prune
from noetl_core.state_json import decode_state, encode_state
from noetl_core.timestamps import format_time
from noetl_testkit.histories import (
    NOON,
    WORKLOAD,
    History,
    abandoned,
    claimed,
    completed,
    done,
    initialized,
    issued,
    started,
)

COMMAND = issued(History(), "load")
ENTERED = StepEntered(step="load", activation=1, consumes=("",))
BEGUN = (ENTERED, COMMAND, claimed(COMMAND), started(COMMAND))
CHILD = ChildStarted(
    child_execution_id="77", path="x", step="load", command_id=COMMAND.command_id, call_id="c", waits=True
)
PARKED = CommandParked(
    command_id=COMMAND.command_id,
    step="load",
    worker_id="w",
    call_id="c",
    child_execution_id="77",
    payload_ref=WORKLOAD,
    timeout_seconds=60.0,
)
RESUMED = CommandResumed(
    step="load", command_id=COMMAND.command_id, call_id="c", child_execution_id="77", status="completed"
)
ANSWERED = ParkedCall(call_id="c", child_execution_id="77", pipeline=WORKLOAD, status="completed")


def state_after(*contents: object) -> State:
    history = History().add(initialized())
    for content in contents:
        history.add(content)
    return fold_all(empty(history.execution_id), history.recorded)


def command_after(*contents: object) -> Command:
    return state_after(*contents).commands[COMMAND.command_id]


def test_a_parked_command_is_open_and_nobodys_and_has_a_deadline_by_the_logs_clock() -> None:
    command = command_after(*BEGUN, CHILD, PARKED)

    assert command.status is CommandStatus.PARKED
    assert command.is_open
    assert not command.is_claimable
    assert (command.worker_id, command.lease_until) == ("", None)
    assert command.parked == replace(ANSWERED, status="")
    assert command.deadline == NOON + timedelta(seconds=len(BEGUN) + 3 + 60)


def test_the_childs_end_makes_it_claimable_by_anybody() -> None:
    command = command_after(*BEGUN, CHILD, PARKED, RESUMED)

    assert command.status is CommandStatus.RESUMED
    assert command.is_claimable
    assert (command.parked, command.deadline) == (ANSWERED, None)


def test_an_end_that_comes_before_the_parking_counts_when_it_comes() -> None:
    early = state_after(*BEGUN, CHILD, RESUMED)
    late = state_after(*BEGUN, CHILD, RESUMED, PARKED)

    assert early.execution.answered["c"].status == "completed"
    assert early.commands[COMMAND.command_id].status is CommandStatus.STARTED
    assert late.commands[COMMAND.command_id].status is CommandStatus.RESUMED
    assert late.commands[COMMAND.command_id].parked == ANSWERED
    assert late.commands[COMMAND.command_id].deadline is None
    assert not late.execution.answered


def test_an_answer_nobody_asks_for_any_more_is_forgotten_with_the_step() -> None:
    left = StepExited(step="load", activation=1, status="ok")

    assert not state_after(*BEGUN, CHILD, RESUMED, done(COMMAND), completed(COMMAND), left).execution.answered
    assert not state_after(*BEGUN, done(COMMAND), completed(COMMAND), left, RESUMED).execution.answered


def test_a_second_answer_changes_nothing() -> None:
    again = replace(RESUMED, status="failed")

    state = state_after(*BEGUN, CHILD, PARKED, RESUMED, again)

    assert state.commands[COMMAND.command_id].parked == ANSWERED
    assert not state.execution.answered


def test_a_resumed_command_is_claimed_and_ends_like_any_other() -> None:
    facts = (*BEGUN, CHILD, PARKED, RESUMED, claimed(COMMAND), started(COMMAND))

    assert command_after(*facts).status is CommandStatus.STARTED
    assert command_after(*facts).parked == ANSWERED
    assert command_after(*facts, done(COMMAND), completed(COMMAND)).status is CommandStatus.COMPLETED


def test_the_next_attempt_goes_on_where_the_lost_one_was_parked() -> None:
    following = replace(issued(History(), "load", attempt=2), parked=ANSWERED.to_json())

    state = state_after(
        *BEGUN, CHILD, PARKED, RESUMED, claimed(COMMAND), started(COMMAND), abandoned(COMMAND), following
    )

    assert state.commands[following.command_id].parked == ANSWERED
    assert state.commands[following.command_id].status is CommandStatus.ISSUED


def test_an_end_finds_the_attempt_that_waits_and_not_the_one_that_started_the_child() -> None:
    second = issued(History(), "load", attempt=2)
    parked = replace(PARKED, command_id=second.command_id)

    state = state_after(*BEGUN, CHILD, abandoned(COMMAND), second, claimed(second), started(second), parked, RESUMED)

    assert state.commands[second.command_id].status is CommandStatus.RESUMED
    assert state.commands[COMMAND.command_id].status is CommandStatus.ABANDONED


def test_what_has_ended_is_not_parked_any_more() -> None:
    assert command_after(*BEGUN, abandoned(COMMAND), PARKED).status is CommandStatus.ABANDONED


@pytest.mark.parametrize("facts", [(CHILD,), (CHILD, PARKED), (CHILD, RESUMED), (CHILD, PARKED, RESUMED)])
def test_every_state_survives_pruning_and_storing(facts: tuple[object, ...]) -> None:
    state = state_after(*BEGUN, *facts)

    assert prune(state) == state
    assert decode_state(encode_state(state)) == state
    assert state.execution.children == 1


def test_ten_thousand_children_take_no_room() -> None:
    few, many = (
        state_after(*(replace(CHILD, child_execution_id=str(number), waits=False) for number in range(1, count)))
        for count in (3, 300)
    )

    assert len(encode_state(many)) - len(encode_state(few)) < 16


def test_a_timeout_is_an_answer_once_and_only_for_the_wait_it_belongs_to() -> None:
    waiting = state_after(*BEGUN, CHILD, PARKED)
    (deadline,) = open_deadlines(waiting.execution, waiting.commands)
    passed = DeadlinePassed(
        what="command",
        deadline=format_time(deadline.at),
        step="load",
        activation=1,
        command_id=COMMAND.command_id,
    )
    stale = replace(passed, deadline=format_time(NOON))
    history = History().add(initialized())

    late = state_after(*BEGUN, CHILD, PARKED, passed)
    (resumed,) = after_deadline(late, passed, None, history.recorded[0])  # type: ignore[arg-type]  # it needs no plan

    assert resumed == replace(RESUMED, status="timeout")
    untouched = state_after(*BEGUN, CHILD, PARKED, stale)
    assert untouched.commands[COMMAND.command_id].deadline == deadline.at
    assert after_deadline(untouched, stale, None, history.recorded[0]) == ()  # type: ignore[arg-type]
    over = state_after(*BEGUN, CHILD, PARKED, RESUMED, passed)
    assert after_deadline(over, passed, None, history.recorded[0]) == ()  # type: ignore[arg-type]


def test_each_wait_of_a_command_has_a_deadline_of_its_own() -> None:
    first = state_after(*BEGUN, CHILD, PARKED)
    second = state_after(
        *BEGUN, CHILD, PARKED, RESUMED, claimed(COMMAND), started(COMMAND), replace(PARKED, call_id="d")
    )

    keys = [one.key for state in (first, second) for one in open_deadlines(state.execution, state.commands)]
    assert len(set(keys)) == 2


def test_a_child_knows_its_depth_and_the_call_that_waits_for_it() -> None:
    call = ParentCall(command_id="m", call_id="c", step="s", pool="p")
    history = History(parent_execution_id=5).add(replace(initialized(), depth=2, parent_call=call.to_json()))

    execution = fold_all(empty(history.execution_id), history.recorded).execution

    assert (execution.parent_execution_id, execution.depth, execution.parent_call) == ("5", 2, call)


def test_a_cancelled_family_is_to_be_looked_after_until_it_has_ended() -> None:
    cancelled = ExecutionCancelled(reason="", cancelled_by="a", cascade=True)

    assert state_after(CHILD, cancelled).execution.cascades
    assert not state_after(cancelled).execution.cascades
    assert not state_after(CHILD, replace(cancelled, cascade=False)).execution.cascades
    assert not state_after(CHILD, replace(cancelled, cascade=None)).execution.cascades
    assert not state_after(CHILD, cancelled, ExecutionCascaded()).execution.cascades


def test_a_call_is_named_by_what_does_not_change_between_attempts() -> None:
    names = {call_id(command_key=key, label=label, run=run) for key in "ab" for label in "xy" for run in (1, 2)}

    assert len(names) == 8
    assert call_id(command_key="a", label="x", run=1) in names
