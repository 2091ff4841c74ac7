"""Runs the tasks of a step in order, on one worker, as one command: rules decide what each outcome leads to."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.playbook.model import Action, Do, Step, Task
from noetl_core.ports.commands import GrantedCommand
from noetl_core.timestamps import format_time

from noetl_worker.application.outcome import ErrorKind, Outcome, OutcomeMeta
from noetl_worker.application.policy import Retry, choose, retry_of
from noetl_worker.application.scopes import PipelineScope
from noetl_worker.application.tool_call import Tool, ToolCall

MAX_TASK_RUNS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineEnd:
    """How a step's tasks ended, and what they have set."""

    outcome: Outcome
    broke: bool = False
    variables: Mapping[str, JsonValue] = field(default_factory=dict)


class Pipeline:
    """A single tool is a pipeline of one; its result then has no labels."""

    def __init__(
        self,
        tool: Tool,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        max_task_runs: int = MAX_TASK_RUNS,
    ) -> None:
        self._tool = tool
        self._max_task_runs = max_task_runs
        self._sleep = sleep
        self._chance = chance

    async def __call__(self, command: GrantedCommand, step: Step, names: Mapping[str, object]) -> PipelineEnd:
        """Run to the end; only trouble of our own is raised."""
        run = _Run(command, step, PipelineScope(outer=names))
        while run.position < len(step.tasks):
            task = step.tasks[run.position]
            if run.task_runs >= self._max_task_runs:
                message = f"tasks run at most {self._max_task_runs} times"
                return run.failed(ErrorKind.UNKNOWN, "pipeline.iteration_cap", message)
            end = await self._run_task(run, task)
            if end is not None:
                return end
        return run.ended()

    async def _run_task(self, run: _Run, task: Task) -> PipelineEnd | None:
        """Run one task, with its retries; returns the end of the pipeline if this was it."""
        for attempt in itertools.count(1):
            outcome = await self._tool.run(run.call(task, attempt))
            run.task_runs += 1
            outcome = replace(outcome, meta=replace(outcome.meta, attempt=attempt))
            try:
                action, retry = run.judge(task, outcome, attempt)
            except TemplateFailed as exc:
                return run.failed(ErrorKind.TRANSFORM, exc.code, exc.message)
            if retry is not None and attempt < retry.attempts and run.task_runs < self._max_task_runs:
                await self._sleep(retry.delay(run=attempt, chance=self._chance))
                continue
            return run.follow(task, outcome, action)
        raise AssertionError("unreachable")


@dataclass(slots=True)
class _Run:
    """Where a pipeline stands."""

    command: GrantedCommand
    step: Step
    scope: PipelineScope
    position: int = 0
    task_runs: int = 0
    last: Outcome = field(default_factory=Outcome)

    @property
    def now(self) -> str:
        return format_time(self.command.issued_at)

    def call(self, task: Task, attempt: int) -> ToolCall:
        command, tool = self.command, task.tool
        return ToolCall(
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            execution_id=command.key.execution_id,
            step=command.step,
            kind=tool.kind,
            input=self.step.merged_input(task),
            config=tool.config if tool.auth is None else {**tool.config, "auth": tool.auth},
            names=self.scope.names(label=task.label, attempt=attempt),
            now=self.now,
            timeout_seconds=tool.timeout_seconds,
            attempt=attempt,
        )

    def judge(self, task: Task, outcome: Outcome, attempt: int) -> tuple[Action, Retry | None]:
        """§6.5: the task's `set`, then the rules, then the `set` of the one that matched."""
        tool, label = task.tool, task.label
        if tool.set and outcome.error is None:
            self.scope.set_from_task(tool.set, outcome, label=label, attempt=attempt, now=self.now)
        names = self.scope.with_outcome(outcome, label=label, attempt=attempt)
        action = choose(tool.rules, names, failed=outcome.error is not None, now=self.now)
        for assignment in action.set:
            try:
                self.scope.assign([assignment], names, now=self.now)
            except TemplateFailed:
                continue  # §5.1: what cannot be rendered leaves its target as it was
        return action, retry_of(action, names, now=self.now) if action.do is Do.RETRY else None

    def follow(self, task: Task, outcome: Outcome, action: Action) -> PipelineEnd | None:
        """Go where the action leads."""
        self.scope.finish(task.label, outcome)
        self.last = outcome
        match action.do:
            case Do.CONTINUE:
                self.position += 1
                return None
            case Do.JUMP:
                labels = [one.label for one in self.step.tasks]
                self.position = labels.index(action.to) if action.to in labels else max(self.position - 1, 0)
                return None
            case Do.BREAK:
                return self.ended(broke=True)
            case Do.RETRY | Do.FAIL:
                return self._fail(outcome)

    def _fail(self, outcome: Outcome) -> PipelineEnd:
        if outcome.error is None:
            failed = Outcome.failed(
                kind=ErrorKind.UNKNOWN, code="POLICY_FAIL", message="a rule of the task says that it failed"
            )
            outcome = replace(failed, data=outcome.data, meta=outcome.meta)
        return PipelineEnd(outcome=self._told(outcome), variables=self.scope.variables)

    def failed(self, kind: ErrorKind, code: str, message: str) -> PipelineEnd:
        """The pipeline itself cannot go on."""
        meta = OutcomeMeta(attempt=self.last.meta.attempt)
        outcome = Outcome.failed(kind=kind, code=code, message=message, meta=meta)
        return PipelineEnd(outcome=outcome, variables=self.scope.variables)

    def ended(self, *, broke: bool = False) -> PipelineEnd:
        """The last task's outcome is the step's; an error that a rule let pass is data now."""
        told = self.last if self.last.error is None else Outcome(data=self.last.result(), meta=self.last.meta)
        return PipelineEnd(outcome=self._told(told), broke=broke, variables=self.scope.variables)

    def _told(self, outcome: Outcome) -> Outcome:
        """§5.2: the last task's fields on top, then labels, `results` and `_prev`."""
        if not self.step.is_pipeline:
            return outcome
        results: JsonObject = dict(self.scope.results)
        top = outcome.data if isinstance(outcome.data, dict) else {"data": outcome.data}
        return replace(outcome, data={"results": results, "_prev": self.scope.previous, **results, **top})
