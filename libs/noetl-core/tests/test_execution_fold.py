from datetime import timedelta

import pytest
from noetl_core.executions.events import (
    CtxUpdated,
    ExecutionCancelled,
    ExecutionRetired,
    PlaybookCompleted,
    PlaybookFailed,
    StepEntered,
    StepExited,
    StepSkipped,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowInitialized,
)
from noetl_core.executions.fold import evolve
from noetl_core.executions.state import Arrival, Execution, ExecutionStatus, Step, StepStatus
from noetl_testkit.histories import NOON, WORKLOAD, initialized

ERROR = {"code": "python.error", "message": "boom", "step": "load"}


def after(*events: object, execution: Execution | None = None) -> Execution:
    """The execution after facts that happened a second apart, the first of them at noon."""
    state = execution or Execution(execution_id=1)
    for second, event in enumerate(events):
        state = evolve(state, event, event_time=NOON + timedelta(seconds=second))  # type: ignore[arg-type]
    return state


def test_the_first_event_pins_the_playbook_version_and_its_variables() -> None:
    execution = after(initialized())

    assert (execution.path, execution.version, execution.catalog_id) == ("examples/hello", 3, "4711")
    assert execution.workload == WORKLOAD
    assert execution.started_at == NOON
    assert execution.status is ExecutionStatus.RUNNING


def test_the_planner_s_first_event_lets_the_entry_step_be_entered() -> None:
    assert after(WorkflowInitialized(entry_step="begin")).arrivals == (Arrival(step="begin", cause_step=""),)


def test_entering_answers_the_arrivals_that_it_names_and_no_others() -> None:
    fired = after(
        StepExited(step="a", activation=1, status="ok", fired=("join",)),
        StepExited(step="b", activation=1, status="ok", fired=("join", "other")),
        StepExited(step="a", activation=2, status="ok", fired=("join",)),
    )

    entered = after(StepEntered(step="join", activation=1, consumes=("a", "b")), execution=fired)

    assert entered.arrivals == (
        Arrival(step="other", cause_step="b"),
        Arrival(step="join", cause_step="a"),
    )
    assert entered.steps["join"] == Step(status=StepStatus.ACTIVE, activation=1)


def test_entering_for_an_arrival_that_nobody_saw_is_a_fact_all_the_same() -> None:
    entered = after(StepEntered(step="load", activation=1, cause_step="x", consumes=("x",)))

    assert entered.steps["load"].status is StepStatus.ACTIVE
    assert entered.arrivals == ()


def test_a_step_that_is_entered_again_shows_its_last_result_until_there_is_a_new_one() -> None:
    before = Execution(
        execution_id=1, steps={"load": Step(status=StepStatus.DONE, activation=1, result={"status": "ok"})}
    )

    again = after(StepEntered(step="load", activation=2), execution=before)

    assert again.steps["load"] == Step(status=StepStatus.ACTIVE, activation=2, result={"status": "ok"})


@pytest.mark.parametrize(("said", "status"), [("ok", StepStatus.DONE), ("error", StepStatus.FAILED)])
def test_leaving_a_step_says_how_it_ended(said: str, status: StepStatus) -> None:
    execution = after(StepEntered(step="load", activation=1), StepExited(step="load", activation=1, status=said))

    assert execution.steps["load"].status is status


def test_the_first_unhandled_failure_is_the_one_that_counts() -> None:
    execution = after(
        StepExited(step="a", activation=1, status="error", error={"code": "handled"}, handled=True),
        StepExited(step="b", activation=1, status="error", error=ERROR, handled=False),
        StepExited(step="c", activation=1, status="error", error={"code": "later"}, handled=False),
    )

    assert execution.failure == ERROR
    assert execution.status is ExecutionStatus.RUNNING


def test_a_step_that_cannot_be_reached_any_more_is_skipped() -> None:
    assert after(StepSkipped(step="never")).steps == {"never": Step(status=StepStatus.SKIPPED)}


def test_a_step_that_was_denied_keeps_its_last_result_and_answers_who_asked_for_it() -> None:
    before = after(
        StepExited(step="a", activation=1, status="ok", fired=("load", "other")),
        execution=Execution(
            execution_id=1, steps={"load": Step(status=StepStatus.DONE, activation=1, result={"status": "ok"})}
        ),
    )

    denied = after(StepSkipped(step="load"), execution=before)

    assert denied.steps["load"] == Step(status=StepStatus.SKIPPED, activation=1, result={"status": "ok"})
    assert denied.arrivals == (Arrival(step="other", cause_step="a"),)


def test_a_variable_is_its_last_value_or_its_last_reference_and_never_both() -> None:
    execution = after(
        CtxUpdated(step="a", values={"x": 1, "y": [1]}, refs={"z": {"uri": "old"}}),
        CtxUpdated(step="b", values={"z": 3}, refs={"x": {"uri": "new"}}),
    )

    assert execution.variables == {"y": [1], "z": 3}
    assert execution.variable_refs == {"x": {"uri": "new"}}


def test_what_the_workflow_says_about_itself_changes_no_status() -> None:
    assert after(WorkflowCompleted()).status is ExecutionStatus.RUNNING
    assert after(WorkflowFailed(error=ERROR)).status is ExecutionStatus.RUNNING


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (PlaybookCompleted(), ExecutionStatus.COMPLETED),
        (PlaybookFailed(error=ERROR), ExecutionStatus.FAILED),
        (ExecutionCancelled(reason="enough", cancelled_by="ada"), ExecutionStatus.CANCELLED),
    ],
)
def test_an_end_is_final_and_leaves_nothing_waiting(end: object, status: ExecutionStatus) -> None:
    execution = after(WorkflowInitialized(entry_step="begin"), end)

    assert execution.status is status
    assert execution.status.is_final
    assert execution.ended_at == NOON + timedelta(seconds=1)
    assert execution.arrivals == ()
    assert execution.error == (ERROR if status is ExecutionStatus.FAILED else None)


@pytest.mark.parametrize(
    "late",
    [
        PlaybookCompleted(),
        PlaybookFailed(error=ERROR),
        ExecutionCancelled(reason="late", cancelled_by="bob"),
        ExecutionRetired(manifest="m"),
        WorkflowCompleted(),
    ],
)
def test_nothing_changes_how_an_execution_has_ended(late: object) -> None:
    ended = after(ExecutionCancelled(reason="enough", cancelled_by="ada"))

    assert after(late, execution=ended) == ended


def test_a_late_step_never_brings_an_execution_back() -> None:
    ended = after(PlaybookCompleted(), StepEntered(step="late", activation=1))

    assert ended.status is ExecutionStatus.COMPLETED
