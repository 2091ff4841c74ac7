from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from noetl_core.commands.state import CommandStatus
from noetl_core.envelope import Draft
from noetl_core.executions.events import StepEntered
from noetl_core.executions.state import ExecutionStatus, StepStatus
from noetl_core.fold import State, empty, fold, fold_all, prune
from noetl_testkit.histories import (
    EXECUTION,
    NOON,
    TRACE,
    History,
    choices,
    claimed,
    completed,
    done,
    failed_call,
    histories,
    initialized,
    issued,
    started,
    two_steps,
)


def state_of(history: History) -> State:
    return fold_all(empty(history.execution_id), history.recorded)


def test_a_playbook_of_two_steps_that_ends_well_tells_its_whole_story() -> None:
    history = two_steps(History(parent_execution_id=99))

    state = state_of(history)

    assert state.execution.status is ExecutionStatus.COMPLETED
    assert {name: step.status for name, step in state.execution.steps.items()} == {
        "first": StepStatus.DONE,
        "second": StepStatus.DONE,
    }
    assert [command.status for command in state.commands.values()] == [CommandStatus.COMPLETED] * 2
    assert state.stream_version == len(history.stored) == 18
    assert (state.last_event_type, state.last_node_name) == ("playbook.completed", "second")
    assert state.event_time_watermark == NOON + timedelta(seconds=5, milliseconds=-5)
    assert state.execution.trace == TRACE
    assert state.execution.parent_execution_id == "99"
    assert (state.execution.tenant_id, state.execution.organization_id) == ("default", "default")


def test_the_result_of_a_call_becomes_the_result_of_its_step() -> None:
    history = History().add(initialized())
    command = issued(history, "load")
    history.add(StepEntered(step="load", activation=1), command, claimed(command), done(command, rows_read=7))

    result = state_of(history).execution.steps["load"].result

    assert result is not None
    assert result["context"] == {"rows_read": 7}


def test_a_failed_call_leaves_its_result_too() -> None:
    history = History().add(initialized())
    command = issued(history, "load")
    history.add(command, failed_call(command, "boom"))

    result = state_of(history).execution.steps["load"].result

    assert result is not None
    assert result["status"] == "error"


def test_an_event_of_an_unknown_type_or_version_is_counted_and_changes_nothing_else() -> None:
    history = History().add(initialized())
    before = state_of(history)
    history.add(
        Draft(event_type="user.note", idempotency_key="note", node_name="load"),
        Draft(event_type="step.enter", schema_version=99, idempotency_key="future"),
    )

    state = state_of(history)

    assert state.unknown_events == 2
    assert state.execution == before.execution
    assert state.commands == before.commands
    assert (state.stream_version, state.last_event_type, state.last_node_name) == (3, "step.enter", "load")


def test_a_decision_that_is_folded_before_what_stands_earlier_does_not_move_the_version_back() -> None:
    history = two_steps(History())
    ahead, behind = history.recorded[3], history.recorded[2]

    state = fold(fold(empty(EXECUTION), ahead), behind)

    assert state.stream_version == 4


def test_a_fold_leaves_the_state_before_it_alone() -> None:
    history = two_steps(History())
    state = fold_all(empty(EXECUTION), history.recorded[:5])
    steps, commands = dict(state.execution.steps), dict(state.commands)

    fold_all(state, history.recorded[5:])

    assert (state.execution.steps, state.commands) == (steps, commands)


def test_pruning_keeps_what_is_open_and_the_last_closed_attempt_of_each_step() -> None:
    history = History().add(initialized())
    for activation in (1, 2, 3):
        command = issued(history, "load", activation=activation)
        history.add(command, claimed(command), started(command), done(command), completed(command))
    waiting = issued(history, "load", activation=4)
    other = issued(history, "store")
    history.add(waiting, other, claimed(other))

    state = prune(state_of(history))

    assert {command.activation for command in state.commands.values() if command.step == "load"} == {3, 4}
    assert other.command_id in state.commands
    assert prune(state) is state


def test_of_commands_that_one_event_closed_the_same_one_is_kept_in_whatever_order_they_stand() -> None:
    history = History().add(initialized())
    first, second = issued(history, "load"), issued(history, "load", attempt=2)
    state = state_of(history.add(first, second))
    closed = [replace(command, status=CommandStatus.STOPPED, stream_version=9) for command in state.commands.values()]
    kept = [
        prune(replace(state, commands={command.command_id: command for command in order})).commands
        for order in (closed, closed[::-1])
    ]

    assert kept[0] == kept[1]
    assert list(kept[0]) == [second.command_id]


@given(histories(), st.integers(0, 2**32))
def test_pruning_at_any_time_leads_to_the_same_pruned_state(history: History, seed: int) -> None:
    choose = choices(seed)
    pruned_often = empty(EXECUTION)
    for event in history.recorded:
        pruned_often = fold(pruned_often, event)
        if choose.random() < 0.3:
            pruned_often = prune(pruned_often)

    assert prune(pruned_often) == prune(state_of(history))


@given(histories())
def test_open_commands_have_a_lease_exactly_while_a_worker_holds_them(history: History) -> None:
    for command in state_of(history).commands.values():
        held = command.status in (CommandStatus.CLAIMED, CommandStatus.STARTED)
        assert (command.lease_until is not None) == held
        assert (command.ended_at is not None) == (not command.is_open)
