"""What follows when an activation is over, at once or after a worker has evaluated what leads on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from noetl_core.commands.state import Command
from noetl_core.events import Event
from noetl_core.executions.evaluation import Evaluation, Place
from noetl_core.executions.evaluators import LOCALLY, Answered, Evaluator, NeedsEvaluation, Unanswered
from noetl_core.executions.leaving import failed_entry, leave
from noetl_core.executions.plan import Plan
from noetl_core.executions.router import Router
from noetl_core.executions.state import Execution, StepStatus
from noetl_core.fold import State
from noetl_core.imagining import imagine
from noetl_core.playbook.model import FailureMode
from noetl_core.recorded import Recorded
from noetl_core.timestamps import format_time
from noetl_core.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """An activation that has an outcome and is to be left."""

    step: str
    activation: int
    result: Mapping[str, Any]
    at_entry: bool = False
    """It failed before anything ran, so that its result is told with its end."""

    @classmethod
    def by(cls, command: Command, result: Mapping[str, Any]) -> Left:
        """The activation that a command was for."""
        return cls(step=command.step, activation=command.activation, result=result)


def time_of(cause: Recorded) -> str:
    """§6.6: `now()` in a control expression is the time of the event that is decided on."""
    return format_time(cause.envelope.event_time)


def router_for(state: State, plan: Plan, cause: Recorded, *, now: str | None = None) -> Router:
    """Routing from where the execution stands; steps whose admission a worker evaluates are held, and so are chunks.

    So are those whose answer came while the execution was paused, and that is decided on after this.
    """
    later = {one.command_id for one in state.execution.released}
    asked = [
        (command.evaluation["place"], command.evaluation["step"])
        for command in state.commands.values()
        if command.evaluation and (command.is_open or command.command_id in later)
    ]
    return Router(
        state.execution,
        plan,
        now=now or time_of(cause),
        cause=cause.stream_version,
        held=[step for place, step in asked if place == Place.ADMIT],
        asked=[step for place, step in asked if place == Place.CHUNK],
    )


def route(state: State, plan: Plan, left: Left, cause: Recorded, *facts: Event) -> tuple[Event, ...]:
    """The facts that follow from the outcome of an activation, which `facts` tell if the log does not."""
    state = imagine(state, facts, cause)
    router = router_for(state, plan, cause)
    for fact in facts:
        router.add(fact)
    _leave(router, state.execution, plan, left, now=time_of(cause), evaluator=LOCALLY)
    return router.facts


def route_call(state: State, plan: Plan, left: Left, cause: Recorded, *facts: Event) -> tuple[Event, ...]:
    """As `route`, for a call that has ended: while chunks of it wait for their turn, its step is not left yet."""
    after = imagine(state, facts, cause)
    router = router_for(after, plan, cause)
    if not router.close_stream(left.step, left.result):
        return route(state, plan, left, cause, *facts)
    for fact in facts:
        router.add(fact)
    router.advance()
    return router.facts


def go_on(state: State, command: Command, plan: Plan, cause: Recorded) -> tuple[Event, ...]:
    """A worker has evaluated: decide as if its values had been here when they were needed."""
    answer = command.answer or {}
    context = answer.get("context") or {}
    if answer.get("status") != "ok":
        return go_on_without(context.get("error") or {}, state, command, plan, cause)
    return _go_on(state, command, plan, cause, Answered(context.get("evaluation") or {}))


def go_on_without(
    error: Mapping[str, Any], state: State, command: Command, plan: Plan, cause: Recorded
) -> tuple[Event, ...]:
    """No worker could evaluate: that fails the step, and its error arcs may still handle it."""
    return _go_on(state, command, plan, cause, Unanswered(error))


def _go_on(state: State, command: Command, plan: Plan, cause: Recorded, evaluator: Evaluator) -> tuple[Event, ...]:
    evaluation = Evaluation.from_json(command.evaluation or {})
    router = router_for(state, plan, cause, now=evaluation.now)
    match evaluation.place:
        case Place.ADMIT:
            router.resume_admission(evaluation, evaluator)
            router.advance()
        case Place.LEAVE:
            if not _is_still_in(state.execution, evaluation):
                return ()
            left = left_by(evaluation, state.execution)
            _leave(router, state.execution, plan, left, now=evaluation.now, evaluator=evaluator)
        case Place.LOOP:
            if not _is_still_in(state.execution, evaluation):
                return ()
            cause_step = state.execution.steps[evaluation.step].cause_step
            router.open_loop(evaluation.step, evaluation.activation, cause_step=cause_step, evaluator=evaluator)
            router.advance()
        case Place.CHUNK:
            if not _is_still_in(state.execution, evaluation) or evaluation.chunk is None:
                return ()
            router.resume_chunk(evaluation.chunk, evaluator)
            router.advance()
        case _:
            assert_never(evaluation.place)
    return router.facts


def after_item(state: State, command: Command, plan: Plan, cause: Recorded, *facts: Event) -> tuple[Event, ...]:
    """An item of a loop has an outcome, unless that does not count any more."""
    if not is_of_open_loop(state, command):
        return ()
    router = router_for(state, plan, cause)
    for fact in facts:
        router.add(fact)
    router.go_on(command.step)
    return router.facts


def is_of_open_loop(state: State, command: Command) -> bool:
    """Whether a command runs an item whose loop waits for it."""
    loop = state.execution.loops.get(command.step)
    return loop is not None and loop.loop_id == command.loop_id and loop.is_open


def left_by(evaluation: Evaluation, execution: Execution) -> Left:
    """The activation that waits for an evaluation; one that failed at its entry has no result of its own."""
    step = execution.steps[evaluation.step]
    result = step.result or {} if evaluation.error is None else failed_entry(evaluation.error)
    at_entry = evaluation.error is not None
    return Left(step=evaluation.step, activation=evaluation.activation, result=result, at_entry=at_entry)


def _is_still_in(execution: Execution, evaluation: Evaluation) -> bool:
    """Whether nobody has ended the activation meanwhile."""
    step = execution.steps.get(evaluation.step)
    return step is not None and step.status is StepStatus.ACTIVE and step.activation == evaluation.activation


def _leave(router: Router, execution: Execution, plan: Plan, left: Left, *, now: str, evaluator: Evaluator) -> None:
    step, activation = left.step, left.activation
    try:
        update, exited = leave(
            execution, plan, step=step, activation=activation, result=left.result, now=now, evaluator=evaluator
        )
    except NeedsEvaluation:
        router.ask_to_leave(step, activation, cause_step=execution.steps[step].cause_step)
        return
    if update is not None:
        router.update(update)
    router.leave(replace(exited, result=left.result) if left.at_entry else exited)
    failing_fast = plan.playbook.steps[step].failure_mode is FailureMode.FAIL_FAST
    if not exited.handled and failing_fast:
        router.end()
    else:
        router.advance()
