"""Runs the tasks of a step in order, on one worker, as one command: rules decide what each outcome leads to."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from noetl_core.children.state import call_id
from noetl_core.errors import NotCanonical, NotFound
from noetl_core.loops.collection import LoopInvalid
from noetl_core.playbook.expressions import TemplateFailed
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
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE

from noetl_worker.application.child_calls import Asked, ChildCalls, Waiting, read_call
from noetl_worker.application.chunk_stream import ChunkNotTold, ChunkStream, TellChunks
from noetl_worker.application.iteration import Iteration
from noetl_worker.application.keychain import Keychain
from noetl_worker.application.outcome import ErrorKind, Outcome, gone_result
from noetl_worker.application.pages import Pages
from noetl_worker.application.parked_loop import WaitingItem
from noetl_worker.application.parked_pipeline import Stand, decode_stand, encode_stand
from noetl_worker.application.pipeline_run import PipelineEnd, PipelineRun
from noetl_worker.application.pipeline_streams import PipelineStreams
from noetl_worker.application.policy import number_of
from noetl_worker.application.rate_limits import RateLimits
from noetl_worker.application.retry_after import asked_pause
from noetl_worker.application.scopes import PipelineScope
from noetl_worker.application.task_loop import ItemWait, TaskLoopRun
from noetl_worker.application.tool_call import Tool as CallableTool
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.application.waiting_retries import WaitingRetries

MAX_TASK_RUNS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePark:
    """The pipeline waits for a child; where it stands is in the bytes."""

    stand: bytes
    waiting: Waiting


class _Waits(Exception):
    def __init__(self, park: PipelinePark) -> None:
        super().__init__("waits")
        self.park = park


class _ItemWaits(Exception):
    def __init__(self, wait: ItemWait) -> None:
        super().__init__("waits")
        self.wait = wait


async def _stored(run: PipelineRun, attempt: int, asked: Asked) -> bytes:
    """Where the pipeline is parked if the call waits; for an item only whether what is around it could be."""
    if run.around is None:
        return await asyncio.to_thread(encode_stand, run.stand(attempt=attempt, asked=asked))
    if not run.around.is_storable:
        await asyncio.to_thread(encode_stand, run.around.snapshot())
        run.around.is_storable = True
    return b""


class Pipeline:
    """A single tool is a pipeline of one; its result then has no labels."""

    def __init__(
        self,
        tool: CallableTool,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.perf_counter,
        max_task_runs: int = MAX_TASK_RUNS,
        limits: RateLimits | None = None,
        keychain: Keychain | None = None,
        children: ChildCalls | None = None,
        streams: TellChunks | None = None,
        retries: WaitingRetries | None = None,
    ) -> None:
        self._tool = tool
        self._retries = retries or WaitingRetries()
        self._streams = PipelineStreams(streams) if streams else None
        self._children = children
        self._keychain = keychain or Keychain()
        self._limits = limits or RateLimits(sleep=sleep)
        self._max_task_runs = max_task_runs
        self._sleep = sleep
        self._chance = chance
        self._clock = clock
        self._stopwatch = stopwatch

    async def __call__(
        self,
        command: GrantedCommand,
        step: Step,
        names: Mapping[str, object],
        *,
        workbook: Mapping[str, WorkbookTask] | None = None,
        keychain: Mapping[str, KeychainEntry] | None = None,
        stand: bytes | None = None,
        iteration: Iteration | None = None,
    ) -> PipelineEnd | PipelinePark:
        """Run to the end, from where it was parked if it was; only trouble of our own is raised."""
        scope = PipelineScope(outer=names, iteration=iteration)
        run = PipelineRun(command, step, scope, workbook or {}, keychain or {}, stopwatch=self._stopwatch)
        if stand is not None:
            run.go_on_from(await asyncio.to_thread(decode_stand, stand, names, iteration))
        try:
            return await self._run_to_end(run, step)
        except _Waits as waits:
            return waits.park

    async def is_tried_again(
        self, command: GrantedCommand, step: Step, gone: Outcome, *, workbook: Mapping[str, WorkbookTask]
    ) -> bool:
        """Whether the first task wants to read again what could not be reached; returns when it is time for that."""
        ctx = dict(command.variables.values)
        run = PipelineRun(command, step, PipelineScope(outer={**ctx, "ctx": ctx, "steps": {}}), workbook, {})
        try:
            _, _, retry = run.go_back_to(step.tasks[0], gone)
        except (TemplateFailed, NotFound):
            return False
        if retry is not None:
            await self._sleep(retry.delay(run=gone.meta.attempt, chance=self._chance))
        return retry is not None

    async def return_to_producer(self, end: PipelineEnd, lost: Outcome) -> PipelineEnd | PipelinePark | None:
        """A result that could not be stored is a failure of the task that made it: its rules may have it run again.

        None if they do not: then the failure stands.
        """
        run = end.run
        task = next((task for task in run.step.tasks if task.label == run.scope.last_label), None) if run else None
        if run is None or task is None:
            return None
        try:
            outcome, action, retry = run.go_back_to(task, lost)
        except (TemplateFailed, NotFound):
            return None
        run.position = run.step.tasks.index(task)
        if retry is not None:
            await self._sleep(retry.delay(run=outcome.meta.attempt, chance=self._chance))
        elif action.do is Do.JUMP:
            run.follow(task, outcome, action)
        else:
            return None
        try:
            return await self._run_to_end(run, run.step)
        except _Waits as waits:
            return waits.park

    async def _lost(self, run: PipelineRun, task: Task, lost: Outcome) -> PipelineEnd | None:
        """What a task reads or tells cannot be stored or is gone: its rules say whether it is tried again."""
        try:
            outcome, action, retry = run.go_back_to(task, lost)
        except TemplateFailed as exc:
            return run.failed(ErrorKind.TRANSFORM, exc.code, exc.message)
        if retry is None:
            return run.follow(task, outcome, action)
        await self._sleep(retry.delay(run=outcome.meta.attempt, chance=self._chance))
        return None

    async def _run_to_end(self, run: PipelineRun, step: Step) -> PipelineEnd:
        while run.position < len(step.tasks):
            task = step.tasks[run.position]
            if run.task_runs >= self._max_task_runs:
                message = f"tasks run at most {self._max_task_runs} times"
                return run.failed(ErrorKind.UNKNOWN, "pipeline.iteration_cap", message)
            began = self._stopwatch()
            end = await (self._run_task(run, task) if task.loop is None else self._run_loop(run, task, task.loop))
            if run.around is None:  # the whole of a task's loop, and not its items once more
                spent = run.times.tasks.get(task.label) or run.times.of(task.label, task.tool.kind)
                spent.task_seconds += self._stopwatch() - began
            if end is not None:
                return end
        return run.ended()

    async def _run_loop(self, run: PipelineRun, task: Task, loop: TaskLoop) -> PipelineEnd | None:
        """Run a task for each item of its loop; whether one of them ends in `break` concerns only that item."""
        parked, run.answered = run.answered, None
        before, run.attempts_before = run.attempts_before, 0
        stand = parked.loop if isinstance(parked, Stand) else None
        answered = run.command.parked.call_id if stand and run.command.parked else ""
        try:
            items = TaskLoopRun(run, task, loop, stand) if stand else TaskLoopRun.begin(run, task, loop)
        except (TemplateFailed, LoopInvalid) as exc:
            return run.failed(ErrorKind.TRANSFORM, exc.code, exc.message)
        await items.run(self._run_item, answered=answered)
        if items.stand.waiting:
            try:
                data = await asyncio.to_thread(encode_stand, run.stand(loop=items.stand))
            except NotCanonical as exc:
                return run.failed(ErrorKind.SCHEMA, "RESULT_NOT_JSON", exc.message)
            raise _Waits(PipelinePark(stand=data, waiting=items.stand.next_call.waiting(self._clock())))
        outcome = items.told()
        outcome = replace(outcome, meta=replace(outcome.meta, attempt=before + 1))
        return run.follow(task, outcome, Action(do=Do.FAIL if outcome.error else Do.CONTINUE))

    async def _run_item(self, item: PipelineRun) -> Outcome | ItemWait:
        """§10.1: an item whose call waits leaves the others to go on."""
        try:
            return (await self._run_to_end(item, item.step)).outcome
        except _ItemWaits as waits:
            return waits.wait

    async def _run_task(self, run: PipelineRun, task: Task) -> PipelineEnd | None:
        """Run one task, page by page if it has pages; returns the end of the pipeline if this was it."""
        try:
            tool = run.tool_of(task)
            stream = None
            if self._streams is not None:
                await self._streams.load(run, task)
                # Made again for a result that was lost, a call goes on with its stream: what was told stays told.
                stream = run.stream if run.attempts_before else await self._streams.open(run, task, tool)
                run.stream = stream
            if stream is not None:
                stream.restart()
            if tool.paginate is not None:
                pages = Pages.begin(tool.paginate, run.names(task, 1), run.now)
                return await self._run_pages(run, task, tool, pages, stream)
            outcome, action = await self._run_call(run, task, tool, None, stream)
            return run.follow(task, outcome, action)
        except TemplateFailed as exc:
            return run.failed(ErrorKind.TRANSFORM, exc.code, exc.message)
        except NotFound as exc:
            if exc.code != REFERENCE_NOT_AVAILABLE:
                return run.failed(ErrorKind.NOT_FOUND, exc.code, exc.message)
            return await self._lost(run, task, gone_result(exc))
        except ChunkNotTold as exc:
            return await self._lost(run, task, exc.outcome)

    async def _run_pages(
        self, run: PipelineRun, task: Task, tool: Tool, pages: Pages, stream: ChunkStream | None
    ) -> PipelineEnd | None:
        """§5.3: page after page, each under the rules; what leaves in between takes the items so far along."""
        while True:
            outcome, action = await self._run_call(run, task, tool, pages, stream)
            has_more = False
            if outcome.error is None and action.do is Do.CONTINUE:
                has_more = pages.take(outcome)
            elif outcome.error is None:
                pages.add(outcome)
            if stream is not None:
                await stream.put(pages.drain())  # §5.5: a page is a chunk
            if has_more and (over := pages.limit_reached(outcome)) is not None:
                outcome, has_more = over, False
                action, _ = run.judge(task, tool, outcome, outcome.meta.attempt)  # no page is left to be repeated
            if has_more:
                continue
            error = outcome.error
            if error is None or (pages.count and action.do not in (Do.FAIL, Do.RETRY)):
                outcome = replace(pages.told(outcome), error=None)  # an error that is let pass takes no item away
            if stream is not None:
                outcome = await stream.settle(outcome, keys=("data", "body"))
            return run.follow(task, replace(outcome, error=error), action)

    async def _run_call(
        self, run: PipelineRun, task: Task, tool: Tool, pages: Pages | None, stream: ChunkStream | None
    ) -> tuple[Outcome, Action]:
        """Run one call until its rules are content with it, or its attempts are used up."""
        answered, run.answered = run.answered, None
        before, run.attempts_before = run.attempts_before, 0
        for attempt in itertools.count(answered.attempt if answered else before + 1):
            call = run.call(task, tool, attempt)
            if run.keychain:
                call = await self._keychain.opened_for(call, run.keychain)
            bucket = None if answered or not tool.rate_limit else await self._wait_for_turn(call, task, tool)
            if tool.kind == ToolKind.PLAYBOOK and self._children is not None:
                outcome = await self._call_child(run, task, call, self._children, answered)
            elif stream is not None and pages is None and self._streams is not None:
                outcome = await self._streams.call(self._tool, call, stream)
            else:
                outcome = await self._tool.run(pages.call(call) if pages else call)
            answered = None
            spent, rendering = run.times.of(task.label, tool.kind), sum(call.rendering)
            spent.calls += 1
            spent.render_seconds += rendering
            spent.tool_seconds += max(outcome.meta.duration_ms / 1000 - rendering, 0.0)
            if outcome.error is not None:
                self._keychain.learn_from(call, outcome)
            run.task_runs += 1
            if outcome.printed is not None:
                run.captured.take(outcome.printed, task=task.label, run=attempt)
            if bucket is not None:
                self._obey_server(bucket, outcome)
            if outcome.meta.attempt != attempt:
                outcome = replace(outcome, meta=replace(outcome.meta, attempt=attempt))
            outcome = pages.check(outcome) if pages else outcome
            action, retry = run.judge(task, tool, outcome, attempt)
            if retry is not None and attempt < retry.attempts and run.task_runs < self._max_task_runs:
                seconds = retry.delay(run=attempt, chance=self._chance)
                with self._retries.waiting(
                    run.command.key, task=task.label, attempt=attempt + 1, attempts=retry.attempts, seconds=seconds
                ):
                    await self._sleep(seconds)
                continue
            return outcome, action
        raise AssertionError("unreachable")

    async def _call_child(
        self, run: PipelineRun, task: Task, call: ToolCall, children: ChildCalls, answered: Stand | WaitingItem | None
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
        place, number = run.count_call(task)
        try:  # before the child exists: what cannot be parked must not start it
            stand = await _stored(run, call.attempt, asked) if asked.return_step else b""
        except NotCanonical as exc:
            return Outcome.failed(kind=ErrorKind.SCHEMA, code="RESULT_NOT_JSON", message=exc.message)
        key = call_id(command_key=place, label=task.label, run=number)
        started = await children.start(command, asked, call_id=key)
        if isinstance(started, Waiting):
            if run.around is not None:
                until = self._clock() + started.timeout_seconds
                raise _ItemWaits(ItemWait(started=started, until=until, attempt=call.attempt))
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
        seconds = asked_pause(outcome, now=datetime.fromtimestamp(self._clock(), UTC))
        if seconds is not None:
            self._limits.close(bucket, seconds=seconds)
