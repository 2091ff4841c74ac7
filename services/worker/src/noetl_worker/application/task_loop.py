"""The loop of one task, nested in a pipeline: its items run here, without events, and give one result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.loops.collection import collection_of, width_of
from noetl_core.playbook.expressions import render
from noetl_core.playbook.model import LoopMode, Task, TaskLoop

from noetl_worker.application.child_calls import Waiting
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.parked_loop import LoopStand, WaitingItem
from noetl_worker.application.pipeline_run import PipelineRun
from noetl_worker.application.scopes import Written


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemWait:
    """The call of an item has started a child, and waits for its end."""

    started: Waiting
    until: float
    attempt: int


class TaskLoopRun:
    """The items of one loop: those that have ended, those whose calls wait, and those whose turn will come."""

    def __init__(self, run: PipelineRun, task: Task, loop: TaskLoop, stand: LoopStand) -> None:
        self.stand = stand
        self._run = run
        self._task = task
        self._loop = loop
        self._origin = run.scope
        if stand.origin is not None:
            variables, step_scope = dict(stand.origin.variables), dict(stand.origin.step_scope)
            self._origin = replace(run.scope.copy(), variables=variables, step_scope=step_scope)

    @classmethod
    def begin(cls, run: PipelineRun, task: Task, loop: TaskLoop) -> TaskLoopRun:
        """Evaluate the templates of a loop; raises `TemplateFailed` and `LoopInvalid`."""
        names = run.names(task, 1)
        values = collection_of(render(loop.items, names, now=run.now, wants_data=True))
        width = width_of(render(loop.max_in_flight, names, now=run.now))
        if loop.mode is LoopMode.SEQUENTIAL:
            return cls(run, task, loop, LoopStand(values=values, width=1))
        scope = run.scope.copy()  # §6.5: parallel items do not see each other's writes
        origin = Written(variables=scope.variables, step_scope=scope.step_scope)
        return cls(run, task, loop, LoopStand(values=values, width=width, origin=origin))

    async def run(self, run_item: Callable[[PipelineRun], Awaitable[Outcome | ItemWait]], *, answered: str) -> None:
        """Run items, as many at once as may, until nothing can go on: one that waits keeps its place among them.

        The item whose call was answered goes first, from where it stood.
        """
        resumed = dict([self.stand.take(answered)]) if answered else {}
        turns = iter([*resumed, *(index for index in self.stand.unstarted() if index not in resumed)])

        async def take_turns() -> None:
            for index in turns:
                if not await self._take_turn(run_item, index, resumed.get(index)):
                    return

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.stand.width - len(self.stand.waiting), len(self.stand.values))):
                    group.create_task(take_turns())
        except ExceptionGroup as trouble:  # of our own: whoever runs the command knows what to do about each kind
            raise trouble.exceptions[0] from None

    async def _take_turn(
        self,
        run_item: Callable[[PipelineRun], Awaitable[Outcome | ItemWait]],
        index: int,
        resumed: WaitingItem | None,
    ) -> bool:
        """Whether the item has ended, and another one may have its place."""
        run = self._run
        item = run.for_item(self._task, self._loop, self.stand.values, index, self._origin)
        before = item.scope.copy()
        if resumed is not None:
            item.go_on_as(resumed)
        end = await run_item(item)
        if isinstance(end, ItemWait):
            self.stand.waiting[index] = item.waiting_item(
                end.started, until=end.until, attempt=end.attempt, before=before
            )
            return False
        self.stand.finished[index] = end
        run.scope.take_back(item.scope, before=before)
        run.task_runs += item.task_runs - item.runs_before
        return True

    def told(self) -> Outcome:
        """What all of them gave, once all have ended."""
        return told_together([self.stand.finished[index] for index in range(len(self.stand.values))])


def told_together(outcomes: Sequence[Outcome]) -> Outcome:
    """§7.3: the results in the order of their indices, and how many went well; a failed item fails the task."""
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    total, success = len(outcomes), len(outcomes) - len(failed)
    status = "ok" if not failed else "partial" if success else "error"
    stats: JsonObject = {"total": total, "success": success, "failed": len(failed)}
    results: list[JsonValue] = [outcome.result() for outcome in outcomes]
    data: JsonObject = {"results": results, "stats": stats, "count": total, "status": status}
    if not failed:
        return Outcome(data=data)
    message = f"{len(failed)} of {total} items failed; the first: {failed[0].message}"
    return Outcome.failed(kind=ErrorKind.UNKNOWN, code="loop.budget_exceeded", message=message[:1000], data=data)
