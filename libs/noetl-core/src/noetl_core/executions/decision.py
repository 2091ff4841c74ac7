"""What one decision has collected so far: its facts, and what they change for routing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from noetl_core.events import Event
from noetl_core.executions.amending import amended
from noetl_core.executions.arrivals import arrived
from noetl_core.executions.evaluation import Evaluation, Place
from noetl_core.executions.events import (
    CtxUpdated,
    PlaybookCompleted,
    PlaybookFailed,
    StepExited,
    WorkflowCompleted,
    WorkflowFailed,
)
from noetl_core.executions.open_loops import OpenLoops
from noetl_core.executions.plan import Plan, runs_once
from noetl_core.executions.staging import stage_asked_for
from noetl_core.executions.state import Arrival, Execution, Step, StepStatus
from noetl_core.loops.events import LoopDone
from noetl_core.playbook.model import FailureMode
from noetl_core.streams.delivery import Delivery
from noetl_core.streams.state import Chunk
from noetl_core.values import replace


class Decision:
    """Facts in order, and the execution as routing sees it after them."""

    def __init__(
        self,
        execution: Execution,
        plan: Plan,
        *,
        now: str,
        cause: int,
        held: Collection[str] = (),
        asked: Collection[str] = (),
    ) -> None:
        self._execution = execution
        self._plan = plan
        self._now = now
        self._cause = cause
        self._held = set(held)
        self._graph = plan.graph
        self._facts: list[Event] = []
        self._active = {name for name, step in execution.steps.items() if step.status is StepStatus.ACTIVE}
        self._activations = {name: step.activation for name, step in execution.steps.items()}
        self._arrivals = execution.arrivals
        self._failure = execution.failure
        self._delivery = Delivery(execution, asked=asked)
        self._loops = OpenLoops(execution, plan)
        self._causes: dict[str, str] = {}
        self._denied: set[str] = set()
        self._must_end = False

    @property
    def facts(self) -> tuple[Event, ...]:
        """What was decided, in order."""
        return tuple(self._facts)

    def add(self, fact: Event) -> None:
        """A fact that changes nothing for routing, but maybe what loops count; with a loop its stage is over."""
        if isinstance(fact, LoopDone):
            self._facts += self._loops.closed_stage(fact)
        self._facts.append(fact)
        self._loops.note(fact)

    def update(self, fact: CtxUpdated) -> None:
        """Variables changed: what is entered from here on sees them."""
        self._facts.append(fact)
        variables = {**self._execution.variables, **fact.values}
        refs = {name: ref for name, ref in self._execution.variable_refs.items() if name not in fact.values}
        refs.update(fact.refs or {})
        variables = {name: value for name, value in variables.items() if name not in refs}
        self._execution = replace(self._execution, variables=variables, variable_refs=refs)

    def arrive(self, arrival: Arrival) -> None:
        """An arc fired into a step."""
        self._arrivals = arrived(self._arrivals, [arrival])

    def fail(self, error: Mapping[str, Any]) -> None:
        """The execution as a whole has failed, whatever failed in it before."""
        self._failure = error

    def leave(self, exited: StepExited) -> None:
        """An activation is over, and with it its loop, whatever the reason."""
        exited = self._without_repetitions(exited)
        done = self._loops.end_with(exited)
        if done is not None:
            self.add(done)
        failing_fast = self._plan.playbook.steps[exited.step].failure_mode is FailureMode.FAIL_FAST
        self._must_end = self._must_end or (failing_fast and not exited.handled)
        self._facts.append(exited)
        self._note_result(exited)
        self._active.discard(exited.step)
        self._delivery.left(exited.step)
        known = exited.repeated or ()
        fired = (Arrival(step=one, cause_step=exited.step) for one in exited.fired if one not in known)
        self._arrivals = arrived(self._arrivals, fired)
        if self._failure is None and not exited.handled:
            self._failure = exited.error

    def _note_result(self, exited: StepExited) -> None:
        """What is entered from here on sees how the step has failed."""
        steps = self._execution.steps
        left = steps.get(exited.step, Step(status=StepStatus.FAILED))
        result = amended(left.result or {}, exited.error or {}) if exited.amends else exited.result
        if result is not None:
            self._execution = replace(self._execution, steps={**steps, exited.step: replace(left, result=result)})

    def end(self) -> None:
        """The terminal facts; loops that are open end with the execution."""
        reason = self._failure or {"kind": "unknown", "code": "loop.stopped", "message": "the execution has ended"}
        for name in self._loops.open_names():
            self.add(self._loops.done(name, error=reason))
        for name in self._plan.playbook.steps:
            if name in self._active and (done := self._loops.never_opened(name, self._activations[name], reason)):
                self.add(done)
        if self._failure is None:
            self._facts += [WorkflowCompleted(), PlaybookCompleted()]
        else:
            self._facts += [WorkflowFailed(error=self._failure), PlaybookFailed(error=self._failure)]

    def ask_to_leave(self, name: str, activation: int, *, cause_step: str) -> None:
        """The step stays active until a worker has evaluated what leads on from it."""
        self._ask(Place.LEAVE, name, activation, answered=[Arrival(step=name, cause_step=cause_step)])

    def _ask(
        self,
        place: Place,
        name: str,
        activation: int,
        *,
        answered: Sequence[Arrival],
        error: Mapping[str, Any] | None = None,
        chunk: Chunk | None = None,
    ) -> None:
        evaluation = Evaluation(
            place=place,
            step=name,
            activation=activation,
            cause=self._cause,
            now=self._now,
            consumes=tuple(arrival.cause_step for arrival in answered) if place is Place.ADMIT else (),
            error=error,
            chunk=chunk,
        )
        self._facts.append(
            evaluation.issue(
                execution_id=self._execution.execution_id,
                pool=self._plan.pool,
                cause_step=answered[-1].cause_step,
                stage_id=stage_asked_for(self._execution, self._plan, evaluation),
            )
        )

    def _fail(self, step: str, error: Mapping[str, Any] | None) -> None:
        if error is None:
            return
        if self._failure is None:
            self._failure = error
        if self._plan.playbook.steps[step].failure_mode is FailureMode.FAIL_FAST:
            self._must_end = True

    def _without_repetitions(self, exited: StepExited) -> StepExited:
        """A join that is led to again while it waits runs once for all of that, however often it is."""
        repeated = tuple(
            target
            for target in exited.fired
            if Arrival(step=target, cause_step=exited.step) in self._arrivals
            and self._runs_once(target)
            and not self._graph.is_back_edge(exited.step, target)
        )
        return replace(exited, repeated=repeated) if repeated else exited

    def _runs_once(self, name: str) -> bool:
        """Whether a step runs once for all arcs that lead to it: a join, and the final step."""
        return runs_once(self._plan, name)

    def _is_busy(self) -> bool:
        """Whether anything is left to run besides the final step, which waits for that, or the final step runs."""
        final = self._plan.playbook.final_step
        return bool(self._active or self._held) or any(arrival.step != final for arrival in self._arrivals)

    def _cause_of(self, name: str) -> str:
        step = self._execution.steps.get(name)
        return self._causes.get(name, step.cause_step if step else "")
