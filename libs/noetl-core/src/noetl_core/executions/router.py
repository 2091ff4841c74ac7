"""Where a decision leads: which steps are entered, left and skipped, and when the execution is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl_core.children.state import ParkedCall
from noetl_core.commands.events import CommandIssued
from noetl_core.deadlines.timeouts import written_timeout
from noetl_core.executions.admission import admits_for
from noetl_core.executions.arrivals import answered as without
from noetl_core.executions.arrivals import arrived
from noetl_core.executions.decision import Decision
from noetl_core.executions.evaluation import Evaluation, Place
from noetl_core.executions.evaluators import LOCALLY, Evaluator, NeedsEvaluation
from noetl_core.executions.events import (
    StepEntered,
    StepSkipped,
)
from noetl_core.executions.leaving import FINAL_CAUSE, failed_entry, failure_of, leave
from noetl_core.executions.looping import never_opened
from noetl_core.executions.plan import Plan
from noetl_core.executions.reducing import awaits_partitions
from noetl_core.executions.staging import open_rows
from noetl_core.executions.state import Arrival, Execution, Step, StepStatus
from noetl_core.ids import command_id
from noetl_core.loops.collection import LoopInvalid
from noetl_core.loops.events import LoopDone
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.stages.events import StageOpened
from noetl_core.stages.fanout import FANOUT, fanout_started
from noetl_core.streams.routing import try_arcs
from noetl_core.streams.state import Chunk
from noetl_core.streams.state import Place as StreamPlace
from noetl_core.values import replace

MAX_ACTIVATIONS = 100_000


def issue(
    execution: Execution,
    plan: Plan,
    *,
    step: str,
    activation: int,
    cause_step: str,
    attempt: int,
    parked: ParkedCall | None = None,
    streamed: StreamPlace | None = None,
) -> CommandIssued:
    return CommandIssued(
        command_id=command_id(
            execution_id=execution.execution_id, step=step, activation=activation, index=0, attempt=attempt
        ),
        step=step,
        pipeline=plan.playbook.steps[step].is_pipeline or None,
        activation=activation,
        attempt=attempt,
        pool=plan.pool,
        cause_step=cause_step,
        parked=parked.to_json() if parked else None,
        streamed=streamed.to_json() if streamed else None,
    )


class Router(Decision):
    """Enters what can be entered, leaves what is over, and ends the execution when nothing is left."""

    def go_on(self, name: str) -> None:
        """An item of a loop has ended: others begin in its place, or the loop is over and its step is left."""
        if self._loops.is_over(name):
            self._leave_loop(self._loops.done(name))
            self.advance()
        else:
            self._begin_items()

    def advance(self) -> None:
        """Enter what can be entered, skip what can no longer be reached, and end when nothing is left."""
        while not self._must_end and (self._enter_one() or self._deliver_one()):
            if self._failure is not None and self._failure.get("code") == "execution.visit_cap":
                self._must_end = True
        if self._must_end:
            self.end()
            return
        self._skip_unreachable()
        final = self._plan.playbook.final_step
        if not self._is_busy() and final is not None and not self._has_run_finally(final):
            self._enter_finally(final)
        if self._is_busy():
            self._begin_items()
        else:
            self.end()

    def close_stream(self, step: str, result: Mapping[str, Any]) -> bool:
        """The call of a step has ended; True if the step is left when its chunks have been taken, and not now."""
        return self._delivery.close(step, result)

    def _deliver_one(self) -> bool:
        """Try the arcs for a chunk whose turn has come, or leave a step whose last chunk is done with."""
        turn = self._delivery.next_chunk(self._arrivals)
        if turn is not None:
            chunk, activation = turn
            self._route_chunk(chunk, activation, LOCALLY)
            return True
        ended = self._delivery.next_end(self._execution, self._arrivals)
        if ended is None:
            return False
        step, activation, result = ended
        try:
            update, exited = leave(
                self._execution, self._plan, step=step, activation=activation, result=result, now=self._now
            )
        except NeedsEvaluation:
            self.ask_to_leave(step, activation, cause_step=self._execution.steps[step].cause_step)
            return True
        if update is not None:
            self.update(update)
        self.leave(exited)
        self._fail(step, None if exited.handled else exited.error)
        return True

    def resume_chunk(self, chunk: Chunk, evaluator: Evaluator) -> None:
        """A worker has evaluated which arcs take a chunk."""
        activation = self._delivery.resume(chunk)
        if activation is not None:
            self._route_chunk(chunk, activation, evaluator)

    def _route_chunk(self, chunk: Chunk, activation: int, evaluator: Evaluator) -> None:
        try:
            update, routed = try_arcs(
                self._execution, self._plan, chunk, activation=activation, now=self._now, evaluator=evaluator
            )
        except NeedsEvaluation:
            self._delivery.ask(chunk)
            told_by = Arrival(step=chunk.step, cause_step=self._cause_of(chunk.step))
            self._ask(Place.CHUNK, chunk.step, activation, answered=[told_by], chunk=chunk)
            return
        if update is not None:
            self.update(update)
        self._facts.append(routed)
        fired = (Arrival(step=one, cause_step=chunk.step, chunk=chunk) for one in routed.fired)
        self._arrivals = arrived(self._arrivals, fired)
        self._fail(chunk.step, routed.error)

    def _enter_finally(self, final: str) -> None:
        """§8.5: it runs once, whether arcs have led to it or nothing but the end, if it is admitted."""
        led_to = [arrival for arrival in self._arrivals if arrival.step == final]
        self._admit(final, led_to or [Arrival(step=final, cause_step=FINAL_CAUSE)])

    def _has_run_finally(self, final: str) -> bool:
        """What a redriven execution takes over is no run of its own."""
        step = self._execution.steps.get(final)
        is_denied = final in self._denied or (step is not None and step.status is StepStatus.SKIPPED)
        return is_denied or self._activations.get(final, 0) > 0

    def _enter_one(self) -> bool:
        """Deal with one step that arcs have led to; one that is denied may make others ready."""
        return any(self._enter_if_ready(name) for name in dict.fromkeys(arrival.step for arrival in self._arrivals))

    def _enter_if_ready(self, name: str) -> bool:
        if name in self._active or name in self._held or name == self._plan.playbook.final_step:
            return False  # §8.4: activations of one step run one at a time; §8.5: the final step waits for the end
        if awaits_partitions(self._plan.playbook, self._graph, name, self._active, self._arrivals):
            return False
        waiting = [arrival for arrival in self._arrivals if arrival.step == name]
        if self._is_still_read(name):  # but for a chunk that leads back: whoever reads may wait for it to be taken
            waiting = [arrival for arrival in waiting if arrival.chunk is not None and self._leads_back(arrival)]
        alone = [arrival for arrival in waiting if self._asks_for_a_run(arrival)]
        joined = [arrival for arrival in waiting if arrival not in alone]
        if joined and not self._can_still_be_reached(name):
            self._admit(name, [arrival for arrival in joined for _ in range(arrival.times)])
        elif alone:
            self._admit(name, alone[:1])
        else:
            return False
        return True

    def _is_still_read(self, name: str) -> bool:
        """Whether a step that is no join runs, or is to run, for the last visit: it reads that visit's result."""
        if not self._activations.get(name):
            return False
        for target in self._graph.forward[name]:
            if self._runs_once(target):
                continue
            if target in self._active and self._cause_of(target) == name:
                return True
            if any(arrival.step == target and arrival.cause_step == name for arrival in self._arrivals):
                return True
        return False

    def _admit(self, name: str, answered: Sequence[Arrival]) -> None:
        step = self._plan.playbook.steps[name]
        if step.admit or step.timeout_template is not None:
            self._judge(name, answered, LOCALLY)
        else:
            self._enter(name, answered, written_timeout(step))

    def resume_admission(self, evaluation: Evaluation, evaluator: Evaluator) -> None:
        """A worker has evaluated what decides whether, and for how long, a step that was held for it may run."""
        answered = [
            Arrival(step=evaluation.step, cause_step=cause, chunk=evaluation.chunk) for cause in evaluation.consumes
        ]
        self._held.discard(evaluation.step)
        if all(arrival in self._arrivals or arrival.cause_step == FINAL_CAUSE for arrival in answered):
            self._judge(evaluation.step, answered, evaluator)

    def _judge(self, name: str, answered: Sequence[Arrival], evaluator: Evaluator) -> None:
        cause = answered[-1].cause_step
        try:
            admitted, timeout = admits_for(
                self._execution,
                self._plan,
                step=name,
                cause_step=cause,
                now=self._now,
                evaluator=evaluator,
                chunk=answered[-1].chunk,
            )
        except NeedsEvaluation:
            self._held.add(name)  # its arrivals stay: it is neither entered nor out of reach
            activation = self._activations.get(name, 0) + 1
            self._ask(Place.ADMIT, name, activation, answered=answered, chunk=answered[-1].chunk)
        except TemplateFailed as exc:
            self._fail_entry(name, answered, exc)
        else:
            if admitted:
                self._enter(name, answered, timeout)
            else:
                self._deny(name, answered)

    def _deny(self, name: str, answered: Sequence[Arrival]) -> None:
        """A denied step is skipped; what only it led to follows."""
        self._arrivals = without(self._arrivals, answered)
        self._denied.add(name)
        self._activations.setdefault(name, 0)
        consumes, chunk = tuple(arrival.cause_step for arrival in answered), _chunk_of(answered)
        self._facts.append(StepSkipped(step=name, consumes=consumes, chunk=chunk))

    def _fail_entry(self, name: str, answered: Sequence[Arrival], exc: TemplateFailed) -> None:
        self._arrivals = without(self._arrivals, answered)
        error = failure_of(name, exc)
        activation = self._activations.get(name, 0) + 1
        self._activations[name] = activation
        cause = answered[-1].cause_step
        consumes = tuple(arrival.cause_step for arrival in answered)
        self._delivery.entered(name, answered[-1].chunk)
        self._facts.append(
            StepEntered(
                step=name,
                activation=activation,
                cause_step=cause,
                consumes=consumes,
                chunk=_chunk_of(answered),
            )
        )
        entered = replace(
            self._execution,
            steps={
                **self._execution.steps,
                name: Step(status=StepStatus.ACTIVE, activation=activation, cause_step=cause),
            },
        )
        result = failed_entry(error)
        try:
            update, exited = leave(entered, self._plan, step=name, activation=activation, result=result, now=self._now)
        except NeedsEvaluation:
            self._active.add(name)
            self._ask(Place.LEAVE, name, activation, answered=answered, error=error)
            return
        if update is not None:
            self.update(update)
        self.leave(replace(exited, result=result))

    def _asks_for_a_run(self, arrival: Arrival) -> bool:
        """Whether it is one activation by itself: only joins merge (§8.3), but neither back edges (§8.4) nor chunks."""
        if arrival.chunk is not None or not self._runs_once(arrival.step):
            return True
        return self._leads_back(arrival)

    def _leads_back(self, arrival: Arrival) -> bool:
        return bool(arrival.cause_step) and self._graph.is_back_edge(arrival.cause_step, arrival.step)

    def _can_still_be_reached(self, name: str) -> bool:
        """§8.3: whether an active step, or one that is about to be entered, leads here forward."""
        upstream = self._active | {arrival.step for arrival in self._arrivals}
        return any(other != name and self._graph.reaches(other, name) for other in upstream)

    def _enter(self, name: str, answered: Sequence[Arrival], timeout_seconds: float | None) -> None:
        activation = self._activations.get(name, 0) + 1
        if activation > MAX_ACTIVATIONS:
            self._failure = {
                "step": name,
                "code": "execution.visit_cap",
                "message": f"a step runs at most {MAX_ACTIVATIONS} times",
            }
            return
        self._activations[name] = activation
        self._active.add(name)
        self._arrivals = without(self._arrivals, answered)
        cause = answered[-1].cause_step
        self._delivery.entered(name, answered[-1].chunk)
        self._facts.append(
            StepEntered(
                step=name,
                activation=activation,
                cause_step=cause,
                consumes=tuple(arrival.cause_step for arrival in answered),
                timeout_seconds=timeout_seconds,
                chunk=_chunk_of(answered),
            )
        )
        self._causes[name] = cause
        entered = self._plan.playbook.steps[name]
        if entered.loop is not None or entered.reduce is not None:
            self.open_loop(name, activation, cause_step=cause, evaluator=LOCALLY)
            return
        self._facts.append(
            issue(self._execution, self._plan, step=name, activation=activation, cause_step=cause, attempt=1)
        )

    def open_loop(self, name: str, activation: int, *, cause_step: str, evaluator: Evaluator) -> None:
        """Fix the collection of an activation, if need be with what a worker has evaluated."""
        try:
            opened = open_rows(
                self._execution,
                self._plan,
                step=name,
                activation=activation,
                cause_step=cause_step,
                now=self._now,
                evaluator=evaluator,
                chunk=self._delivery.chunk_of(name),
            )
        except NeedsEvaluation:
            self._ask(Place.LOOP, name, activation, answered=[Arrival(step=name, cause_step=cause_step)])
        except (TemplateFailed, LoopInvalid) as exc:
            error = failure_of(name, exc)
            self._leave_loop(never_opened(self._execution.execution_id, step=name, activation=activation, error=error))
        else:
            if isinstance(opened, StageOpened) and opened.kind == FANOUT:
                self.add(fanout_started(opened))
            self.add(opened)
            if self._loops.is_over(name):
                self._leave_loop(self._loops.done(name))

    def _leave_loop(self, done: LoopDone) -> None:
        """A loop is over: then come `set` and arcs of its step."""
        self.add(done)
        name, activation, cause = done.step, done.activation, self._cause_of(done.step)
        step = Step(status=StepStatus.ACTIVE, activation=activation, cause_step=cause, result=done.result)
        self._execution = replace(self._execution, steps={**self._execution.steps, name: step})
        result = done.result or {}
        try:
            update, exited = leave(
                self._execution, self._plan, step=name, activation=activation, result=result, now=self._now
            )
        except NeedsEvaluation:
            self.ask_to_leave(name, activation, cause_step=cause)
            return
        if update is not None:
            self.update(update)
        self.leave(exited)

    def _begin_items(self) -> None:
        for fact in self._loops.begin(self._active, self._cause_of):
            self._facts.append(fact)

    def _skip_unreachable(self) -> None:
        """§8.3: steps that were never entered and that nothing alive leads to, by any arc."""
        alive = self._active | self._held | {arrival.step for arrival in self._arrivals}
        reachable = self._graph.led_to(alive)
        playbook = self._plan.playbook
        never_reachable = self._graph.unreachable
        for name in playbook.steps:
            if name in self._activations or name in reachable or name in alive or name in never_reachable:
                continue
            if name != playbook.final_step:
                self._activations[name] = 0
                self._facts.append(StepSkipped(step=name))


def _chunk_of(answered: Sequence[Arrival]) -> dict[str, Any] | None:
    chunk = answered[-1].chunk
    return chunk.to_json() if chunk else None
