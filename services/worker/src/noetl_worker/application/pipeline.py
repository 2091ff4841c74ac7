"""Runs the tasks of a step in order, on one worker, as one command: rules decide what each outcome leads to."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.children.state import call_id
from noetl_core.errors import NotCanonical, NotFound
from noetl_core.playbook.expressions import TemplateFailed, render
from noetl_core.playbook.model import Action, Do, KeychainEntry, Step, Task, Tool, ToolKind, WorkbookTask
from noetl_core.ports.commands import GrantedCommand
from noetl_core.timestamps import format_time

from noetl_worker.application.captured_output import CapturedOutput
from noetl_worker.application.child_calls import Asked, ChildCalls, Waiting, read_call
from noetl_worker.application.keychain import Keychain
from noetl_worker.application.outcome import ErrorKind, Outcome, OutcomeMeta
from noetl_worker.application.pages import PageError, Pages
from noetl_worker.application.parked_pipeline import Stand, decode_stand, encode_stand
from noetl_worker.application.policy import Retry, choose, number_of, retry_of
from noetl_worker.application.rate_limits import RateLimits
from noetl_worker.application.scopes import PipelineScope
from noetl_worker.application.tool_call import Tool as CallableTool
from noetl_worker.application.tool_call import ToolCall

MAX_TASK_RUNS = 100_000
MAX_WORKBOOK_DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineEnd:
    """How a step's tasks ended, and what they have set."""

    outcome: Outcome
    broke: bool = False
    variables: Mapping[str, JsonValue] = field(default_factory=dict)
    captured: CapturedOutput = field(default_factory=CapturedOutput)
    """What its calls printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePark:
    """The pipeline waits for a child; where it stands is in the bytes."""

    stand: bytes
    waiting: Waiting


class _Waits(Exception):
    def __init__(self, park: PipelinePark) -> None:
        super().__init__("waits")
        self.park = park


class Pipeline:
    """A single tool is a pipeline of one; its result then has no labels."""

    def __init__(
        self,
        tool: CallableTool,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        max_task_runs: int = MAX_TASK_RUNS,
        limits: RateLimits | None = None,
        keychain: Keychain | None = None,
        children: ChildCalls | None = None,
    ) -> None:
        self._tool = tool
        self._children = children
        self._keychain = keychain or Keychain()
        self._limits = limits or RateLimits(sleep=sleep)
        self._max_task_runs = max_task_runs
        self._sleep = sleep
        self._chance = chance

    async def __call__(
        self,
        command: GrantedCommand,
        step: Step,
        names: Mapping[str, object],
        *,
        workbook: Mapping[str, WorkbookTask] | None = None,
        keychain: Mapping[str, KeychainEntry] | None = None,
        stand: bytes | None = None,
    ) -> PipelineEnd | PipelinePark:
        """Run to the end, from where it was parked if it was; only trouble of our own is raised."""
        run = _Run(command, step, PipelineScope(outer=names), workbook or {}, keychain or {})
        if stand is not None:
            run.go_on_from(await asyncio.to_thread(decode_stand, stand, names))
        try:
            return replace(await self._run_to_end(run, step), captured=run.captured)
        except _Waits as waits:
            return waits.park

    async def _run_to_end(self, run: _Run, step: Step) -> PipelineEnd:
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
        """Run one task, page by page if it has pages; returns the end of the pipeline if this was it."""
        try:
            tool = run.tool_of(task)
            pages = Pages.begin(tool.paginate, run.names(task, 1), run.now) if tool.paginate else None
            while True:
                outcome, action = await self._run_call(run, task, tool, pages)
                if pages is None or outcome.error is not None or action.do is not Do.CONTINUE:
                    return run.follow(task, outcome, action)
                if not pages.take(outcome):
                    return run.follow(task, pages.told(outcome), action)
                over = pages.limit_reached()
                if over is not None:
                    return run.follow(task, over, Action(do=Do.FAIL))
        except TemplateFailed as exc:
            return run.failed(ErrorKind.TRANSFORM, exc.code, exc.message)
        except PageError as exc:
            return run.failed(ErrorKind.SCHEMA, "PAGINATE_ITEMS", str(exc))
        except NotFound as exc:
            return run.failed(ErrorKind.NOT_FOUND, exc.code, exc.message)

    async def _run_call(self, run: _Run, task: Task, tool: Tool, pages: Pages | None) -> tuple[Outcome, Action]:
        """Run one call until its rules are content with it, or its attempts are used up."""
        answered, run.answered = run.answered, None
        for attempt in itertools.count(answered.attempt if answered else 1):
            call = await self._keychain.opened_for(run.call(task, tool, attempt), run.keychain)
            bucket = None if answered else await self._wait_for_turn(call, task, tool)
            if tool.kind == ToolKind.PLAYBOOK and self._children is not None:
                outcome = await self._call_child(run, task, call, self._children, answered)
            else:
                outcome = await self._tool.run(pages.call(call) if pages else call)
            answered = None
            self._keychain.learn_from(call, outcome)
            run.task_runs += 1
            run.captured.take(outcome.printed, task=task.label, run=attempt)
            if bucket is not None:
                self._obey_server(bucket, outcome)
            outcome = replace(outcome, meta=replace(outcome.meta, attempt=attempt))
            action, retry = run.judge(task, tool, outcome, attempt)
            if retry is not None and attempt < retry.attempts and run.task_runs < self._max_task_runs:
                await self._sleep(retry.delay(run=attempt, chance=self._chance))
                continue
            return outcome, action
        raise AssertionError("unreachable")

    async def _call_child(
        self, run: _Run, task: Task, call: ToolCall, children: ChildCalls, answered: Stand | None
    ) -> Outcome:
        """§10.1: a call that waits gives its slot back, from wherever the pipeline stands."""
        command = run.command
        if answered is not None and command.parked is not None:
            waiting = Waiting(
                call_id=command.parked.call_id,
                child_execution_id=command.parked.child_execution_id,
                path=answered.path,
                return_step=answered.return_step,
            )
            return await children.outcome(command, waiting, status=command.parked.status)
        asked = read_call(call)
        if isinstance(asked, Outcome):
            return asked
        run.runs[task.label] = run.runs.get(task.label, 0) + 1
        try:  # before the child exists: what cannot be parked must not start it
            stand = await asyncio.to_thread(encode_stand, run.stand(call.attempt, asked)) if asked.return_step else b""
        except NotCanonical as exc:
            return Outcome.failed(kind=ErrorKind.SCHEMA, code="RESULT_NOT_JSON", message=exc.message)
        key = call_id(command_key=command.idempotency_key, label=task.label, run=run.runs[task.label])
        started = await children.start(command, asked, call_id=key)
        if isinstance(started, Waiting):
            raise _Waits(PipelinePark(stand=stand, waiting=started))
        return started

    async def _wait_for_turn(self, call: ToolCall, task: Task, tool: Tool) -> str | None:
        """§5.4: a token of the bucket that the task shares with whoever names the same key."""
        limit = tool.rate_limit
        if limit is None:
            return None
        own = f"{call.execution_id}/{call.step}/{task.label}"
        named = call.render(limit.key) if limit.key else own
        key = f"{call.tenant_id}/{call.organization_id}/{named}"
        rate = max(number_of(limit.rate, call.names, call.now), 1e-6)
        per_seconds = max(number_of(limit.per_seconds, call.names, call.now), 1e-6)
        burst = rate if limit.burst is None else number_of(limit.burst, call.names, call.now)
        await self._limits.take(key, rate=rate, per_seconds=per_seconds, burst=burst)
        return key

    def _obey_server(self, bucket: str, outcome: Outcome) -> None:
        """`Retry-After` on 429 closes the bucket for everybody who shares it."""
        http = outcome.http or {}
        headers = http.get("headers")
        if http.get("status") != 429 or not isinstance(headers, dict):
            return
        after = next((value for name, value in headers.items() if name.lower() == "retry-after"), None)
        if isinstance(after, str) and after.strip().isdigit():
            self._limits.close(bucket, seconds=float(after))


@dataclass(slots=True)
class _Run:
    """Where a pipeline stands."""

    command: GrantedCommand
    step: Step
    scope: PipelineScope
    workbook: Mapping[str, WorkbookTask]
    keychain: Mapping[str, KeychainEntry]
    position: int = 0
    task_runs: int = 0
    last: Outcome = field(default_factory=Outcome)
    captured: CapturedOutput = field(default_factory=CapturedOutput)
    runs: dict[str, int] = field(default_factory=dict)
    """How many calls of each task have begun that start a child: a rule that retries wants another one."""
    answered: Stand | None = None
    """Where it was parked, until the call that waited has had its outcome."""

    def stand(self, attempt: int, asked: Asked) -> Stand:
        """Where it is parked."""
        return Stand(
            position=self.position,
            task_runs=self.task_runs,
            attempt=attempt,
            runs=self.runs,
            scope=self.scope,
            last=self.last,
            captured=self.captured,
            path=asked.path,
            return_step=asked.return_step or "",
        )

    def go_on_from(self, stand: Stand) -> None:
        """Take up what another worker has parked."""
        self.position, self.task_runs, self.runs = stand.position, stand.task_runs, dict(stand.runs)
        self.scope, self.last, self.captured = stand.scope, stand.last, stand.captured
        self.answered = stand

    @property
    def now(self) -> str:
        return format_time(self.command.issued_at)

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
            kind=tool.kind,
            input={**self.step.input, **tool.input},
            config=tool.config if tool.auth is None else {**tool.config, "auth": tool.auth},
            names=self.names(task, attempt),
            now=self.now,
            timeout_seconds=tool.timeout_seconds,
            timeout_template=tool.timeout_template,
            attempt=attempt,
        )

    def judge(self, task: Task, tool: Tool, outcome: Outcome, attempt: int) -> tuple[Action, Retry | None]:
        """§6.5: the task's `set`, then the rules, then the `set` of the one that matched."""
        label = task.label
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
