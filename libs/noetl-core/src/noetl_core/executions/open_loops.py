"""The loops of an execution while one decision is made: what its facts change for them, and which items may begin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from noetl_core.commands.events import CallFailed, CommandIssued
from noetl_core.events import Event
from noetl_core.executions.events import StepExited
from noetl_core.executions.looping import close_loop, is_over, issue_item, may_begin, never_opened
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.loops.events import LoopDone, LoopEvent, LoopItemStarted
from noetl_core.loops.fold import Loops, evolve, take_outcome
from noetl_core.stages.events import StageClosed, StageOpened
from noetl_core.stages.fanout import FANOUT, fanin_completed
from noetl_core.stages.fold import close_stage, loop_of, stage_of_event
from noetl_core.stages.shard_events import FaninCompleted

MAX_BEGUN_AT_ONCE: Final = 200
"""Items that one decision gives out, of all loops together; the others follow with later causes."""


class OpenLoops:
    """Folds the facts of the decision as they are made, as the fold will once they are written."""

    def __init__(self, execution: Execution, plan: Plan) -> None:
        self._execution_id = execution.execution_id
        self._plan = plan
        self._loops: Loops = execution.loops
        self._stages = {name: stage for name, stage in execution.stages.items() if stage.is_open}

    def note(self, fact: Event) -> None:
        """A fact of this decision."""
        if isinstance(fact, LoopEvent):
            self._loops = evolve(self._loops, fact)
        elif isinstance(fact, StageOpened):
            self._loops = {**self._loops, fact.step: loop_of(fact, 0)}
            self._stages[fact.step] = stage_of_event(fact)
        elif isinstance(fact, CallFailed) and fact.loop_id is not None and fact.loop_iteration_index is not None:
            self._loops = take_outcome(
                self._loops, step=fact.step, loop_id=fact.loop_id, index=fact.loop_iteration_index, result=fact.result
            )

    def is_open(self, name: str) -> bool:
        """Whether the step has a loop that runs."""
        return name in self._loops and self._loops[name].is_open

    def closed_stage(self, done: LoopDone) -> tuple[StageClosed | FaninCompleted, ...]:
        """The end of the stage that runs a loop, if there is one: no frame of it counts any more."""
        stage = self._stages.pop(done.step, None)
        if stage is None:
            return ()
        closed = close_stage(stage, status=done.status)
        return (closed, fanin_completed(done)) if stage.kind == FANOUT else (closed,)

    def open_names(self) -> list[str]:
        """The steps whose loops run."""
        return [name for name, loop in self._loops.items() if loop.is_open]

    def is_over(self, name: str) -> bool:
        """Whether nothing of the loop is left to run."""
        return is_over(self._plan.playbook.steps[name], self._loops[name])

    def done(self, name: str, *, error: Mapping[str, Any] | None = None) -> LoopDone:
        """The end of a loop; `error` says why it ends if not for its items."""
        return close_loop(self._execution_id, self._plan, step=name, loop=self._loops[name], error=error)

    def end_with(self, exited: StepExited) -> LoopDone | None:
        """The end of the loop of an activation that is left, if it has one and it is not over yet."""
        if self.is_open(exited.step):
            return self.done(exited.step, error=exited.error)
        return self.never_opened(exited.step, exited.activation, exited.error or {})

    def never_opened(self, name: str, activation: int, error: Mapping[str, Any]) -> LoopDone | None:
        """The end of the loop of an activation that is over before its collection was known, if it has one."""
        loop = self._loops.get(name)
        has_been = loop is not None and loop.activation == activation
        step = self._plan.playbook.steps[name]
        if has_been or (step.loop is None and step.reduce is None):
            return None
        return never_opened(self._execution_id, step=name, activation=activation, error=error)

    def begin(
        self, active: Collection[str], cause_of: Callable[[str], str]
    ) -> Iterator[LoopItemStarted | CommandIssued]:
        """What has room, loops with the fewest running items first, so that none waits for another to end."""
        left = MAX_BEGUN_AT_ONCE
        names = [name for name in self.open_names() if name in active]
        for name in sorted(names, key=lambda name: (self._loops[name].running, name)):
            step, cause = self._plan.playbook.steps[name], cause_of(name)
            while left and may_begin(step, loop := self._loops[name]):
                index = loop.begun
                begun = LoopItemStarted(loop_id=loop.loop_id, step=name, iter_index=index, loop_iteration_index=index)
                self.note(begun)
                yield begun
                yield issue_item(
                    self._execution_id,
                    self._plan,
                    step=name,
                    activation=loop.activation,
                    index=index,
                    cause_step=cause,
                    attempt=1,
                )
                left -= 1
