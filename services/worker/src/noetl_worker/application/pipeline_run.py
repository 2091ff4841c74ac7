"""Where the run of a pipeline stands: its scope, its position, and where outcomes lead it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import NotFound
from noetl_core.playbook.expressions import TemplateFailed, render
from noetl_core.playbook.model import (
    Action,
    Do,
    KeychainEntry,
    Step,
    Task,
    TaskLoop,
    Tool,
    ToolKind,
    WorkbookTask,
)
from noetl_core.ports.commands import GrantedCommand
from noetl_core.timestamps import format_time

from noetl_worker.application.call_times import CallTimes
from noetl_worker.application.captured_output import CapturedOutput
from noetl_worker.application.child_calls import Asked, Waiting
from noetl_worker.application.chunk_stream import ChunkStream
from noetl_worker.application.iteration import Iteration
from noetl_worker.application.light_values import light_value
from noetl_worker.application.outcome import ErrorKind, Outcome, OutcomeMeta
from noetl_worker.application.parked_loop import LoopStand, WaitingItem
from noetl_worker.application.parked_pipeline import Stand
from noetl_worker.application.policy import Retry, choose, retry_of
from noetl_worker.application.scopes import PipelineScope
from noetl_worker.application.task_names import TaskNames
from noetl_worker.application.tool_call import ToolCall

MAX_WORKBOOK_DEPTH = 8

_NOTHING_YET = Outcome()
_NO_INPUT: Mapping[str, JsonValue] = {}
_CONTINUES, _FAILS = Action(do=Do.CONTINUE), Action(do=Do.FAIL)
"""What an outcome leads to where nobody has written a rule."""

_told = lru_cache(maxsize=64)(format_time)
"""Rows of a frame ask for the same time again and again."""


@light_value(frozen=True, slots=True, kw_only=True)
class PipelineEnd:
    """How a step's tasks ended, and what they have set."""

    outcome: Outcome
    broke: bool = False
    variables: Mapping[str, JsonValue] = field(default_factory=dict)
    step_scope: Mapping[str, JsonValue] = field(default_factory=dict)
    """Of this activation and its arcs."""
    captured: CapturedOutput = field(default_factory=CapturedOutput)
    """What its calls printed."""
    run: PipelineRun | None = field(default=None, repr=False, compare=False)
    """Where it stands at its end, for who has to go back into it."""


@dataclass(slots=True)
class PipelineRun:
    """Where a pipeline stands."""

    command: GrantedCommand
    step: Step
    scope: PipelineScope
    workbook: Mapping[str, WorkbookTask]
    keychain: Mapping[str, KeychainEntry]
    position: int = 0
    task_runs: int = 0
    last: Outcome = _NOTHING_YET
    captured: CapturedOutput = field(default_factory=CapturedOutput)
    times: CallTimes = field(default_factory=CallTimes)
    runs: dict[str, int] = field(default_factory=dict)
    """How many calls of each task have begun that start a child: a rule that retries wants another one."""
    answered: Stand | WaitingItem | None = None
    """Where it was parked, until the call that waited has had its outcome."""
    runs_before: int = 0
    around: PipelineRun | None = None
    """The pipeline whose task loops, if it runs one item of that loop."""
    attempts_before: int = 0
    """How often the task that runs next has run already, if its result was lost."""
    returns: dict[str, int] = field(default_factory=dict)
    """How often each task was gone back to, since what it gave or read was lost."""
    stream: ChunkStream | None = None
    """Of the task that ran last, if it streams."""
    is_storable: bool = False
    """Whether what it remembers has been seen to have bytes."""
    stopwatch: Callable[[], float] = time.perf_counter
    """What calls took is told in events: where time is not real, neither is this."""

    def stand(self, *, attempt: int = 1, asked: Asked | None = None, loop: LoopStand | None = None) -> Stand:
        """Where it is parked: at a call, or in a loop whose items wait."""
        return Stand(
            position=self.position,
            task_runs=self.task_runs,
            attempt=attempt,
            runs=self.runs,
            scope=self.scope,
            last=self.last,
            captured=self.captured,
            path=asked.path if asked else "",
            return_step=(asked.return_step if asked else None) or "",
            loop=loop,
        )

    def snapshot(self) -> Stand:
        """What it remembers now, apart from what items change while they run beside each other."""
        return replace(self.stand(), scope=self.scope.copy(), runs=dict(self.runs), captured=CapturedOutput())

    def go_on_from(self, stand: Stand) -> None:
        """Take up what another worker has parked."""
        self.position, self.task_runs, self.runs = stand.position, stand.task_runs, dict(stand.runs)
        self.scope, self.last, self.captured = stand.scope, stand.last, stand.captured
        self.answered = stand

    def for_item(
        self, task: Task, loop: TaskLoop, values: Sequence[JsonValue], index: int, origin: PipelineScope
    ) -> PipelineRun:
        """A pipeline of this one task, for one item."""
        iteration = Iteration(
            iterator=loop.iterator,
            value=values[index],
            index=index,
            total=len(values),
            outer=self.scope.iteration,
        )
        return replace(
            self,
            step=replace(self.step, tasks=(replace(task, loop=None),), is_pipeline=False),
            scope=origin.for_item(iteration, key=f"{task.label}/{index}"),
            position=0,
            runs_before=self.task_runs,
            around=self,
        )

    def waiting_item(self, started: Waiting, *, until: float, attempt: int, before: PipelineScope) -> WaitingItem:
        """What this run of an item has come to, when its call waits."""
        return WaitingItem(
            call_id=started.call_id,
            child_execution_id=started.child_execution_id,
            path=started.path,
            return_step=started.return_step,
            until=until,
            attempt=attempt,
            task_runs=self.task_runs - self.runs_before,
            written=self.scope.written(since=before),
            iteration=dict(self.scope.iteration.scope) if self.scope.iteration else {},
        )

    def go_on_as(self, item: WaitingItem) -> None:
        """Take up an item whose call has been answered."""
        self.task_runs += item.task_runs
        self.scope.put(item.written)
        if self.scope.iteration is not None:
            self.scope.iteration.scope.update(item.iteration)
        self.answered = item

    def count_call(self, task: Task) -> tuple[str, int]:
        """What a call belongs to, and its number there: neither depends on what runs beside it."""
        place = str(self.scope.outer.get("idempotency_key") or self.command.idempotency_key)
        counted = f"{place}/{task.label}" if self.around else task.label
        self.runs[counted] = self.runs.get(counted, 0) + 1
        return place, self.runs[counted]

    @property
    def now(self) -> str:
        return _told(self.command.issued_at)

    def names(self, task: Task, attempt: int) -> dict[str, object]:
        return self.scope.names(label=task.label, attempt=attempt)

    def tool_of(self, task: Task) -> Tool:
        """The tool of a task; one that calls the workbook gets that tool, under its own inputs and rules."""
        tool = task.tool
        for _ in range(MAX_WORKBOOK_DEPTH):
            if tool.kind != ToolKind.WORKBOOK:
                return tool
            name = str(render(tool.config.get("task"), self.names(task, 1), now=self.now))
            called = self.workbook.get(name)
            if called is None:
                raise NotFound("workbook task", name, code="WORKBOOK_TASK_NOT_FOUND")
            tool = replace(
                called.tool,
                input={**called.tool.input, **tool.input},
                set=(*called.tool.set, *tool.set),
                rules=tool.rules or called.tool.rules,
                rate_limit=tool.rate_limit or called.tool.rate_limit,
                timeout_seconds=(tool if tool.has_timeout else called.tool).timeout_seconds,
                timeout_template=(tool if tool.has_timeout else called.tool).timeout_template,
            )
        raise NotFound("workbook task", task.label, code="WORKBOOK_TASK_NOT_FOUND")

    def call(self, task: Task, tool: Tool, attempt: int) -> ToolCall:
        command = self.command
        return ToolCall(
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            execution_id=command.key.execution_id,
            step=command.step,
            task=task.label,
            kind=tool.kind,
            input={**self.step.input, **tool.input} if self.step.input or tool.input else _NO_INPUT,
            config=tool.config if tool.auth is None else {**tool.config, "auth": tool.auth},
            names=TaskNames(self.scope, label=task.label, attempt=attempt),
            results=command.results,
            now=self.now,
            timeout_seconds=tool.timeout_seconds,
            timeout_template=tool.timeout_template,
            attempt=attempt,
            stopwatch=self.stopwatch,
        )

    def judge(self, task: Task, tool: Tool, outcome: Outcome, attempt: int) -> tuple[Action, Retry | None]:
        """§6.5: the task's `set`, then the rules, then the `set` of the one that matched."""
        if not tool.set and not tool.rules:
            return (_CONTINUES if outcome.error is None else _FAILS), None
        label = task.label
        if tool.set and outcome.error is None:
            self.scope.set_from_task(tool.set, outcome, step=self.step.name, label=label, attempt=attempt, now=self.now)
        see = partial(self.scope.with_outcome, outcome, step=self.step.name, label=label, attempt=attempt)
        action = choose(tool.rules, see() if tool.rules else {}, failed=outcome.error is not None, now=self.now)
        for assignment in action.set:
            try:
                self.scope.assign([assignment], see, now=self.now)
            except TemplateFailed:
                continue  # §5.1: what cannot be rendered leaves its target as it was
        return action, retry_of(action, see(), now=self.now) if action.do is Do.RETRY else None

    def go_back_to(self, task: Task, lost: Outcome) -> tuple[Outcome, Action, Retry | None]:
        """What the rules of a task make of a loss: it counts as one more of its runs, so that they come to an end."""
        attempt = max(lost.meta.attempt, self.returns.get(task.label, 0) + 1)
        self.returns[task.label] = attempt
        outcome = replace(lost, meta=replace(lost.meta, attempt=attempt))
        action, retry = self.judge(task, self.tool_of(task), outcome, attempt)
        if retry is not None and attempt >= retry.attempts:
            retry = None
        if retry is not None:
            self.attempts_before = attempt
        return outcome, action, retry

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
        return self._end(self._told(outcome))

    def failed(self, kind: ErrorKind, code: str, message: str) -> PipelineEnd:
        """The pipeline itself cannot go on."""
        meta = OutcomeMeta(attempt=self.last.meta.attempt)
        outcome = Outcome.failed(kind=kind, code=code, message=message, meta=meta)
        return self._end(outcome)

    def ended(self, *, broke: bool = False) -> PipelineEnd:
        """The last task's outcome is the step's; an error that a rule let pass is data now."""
        last = self.last
        told = last if last.error is None else replace(last, data=last.result(), error=None)
        return self._end(self._told(told), broke=broke)

    def _end(self, outcome: Outcome, *, broke: bool = False) -> PipelineEnd:
        return PipelineEnd(
            outcome=outcome,
            broke=broke,
            variables=self.scope.variables,
            step_scope=self.scope.step_scope,
            captured=self.captured,
            run=self,
        )

    def _told(self, outcome: Outcome) -> Outcome:
        """§5.2: the last task's fields on top, then labels, `results` and `_prev`."""
        if not self.step.is_pipeline:
            return outcome
        results: JsonObject = dict(self.scope.results)
        top = outcome.data if isinstance(outcome.data, dict) else {"data": outcome.data}
        return outcome.with_data({"results": results, "_prev": self.scope.previous, **results, **top})
