"""The loop of one task, nested in a pipeline: its items run here, without events, and give one result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.loops.collection import collection_of, width_of
from noetl_core.playbook.expressions import render
from noetl_core.playbook.model import LoopMode, TaskLoop

from noetl_worker.application.outcome import ErrorKind, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """What a task loops over, and how many at once."""

    values: Sequence[JsonValue]
    width: int

    @classmethod
    def of(cls, loop: TaskLoop, names: Mapping[str, object], now: str) -> Items:
        """Evaluate the templates of a loop; raises `TemplateFailed` and `LoopInvalid`."""
        values = collection_of(render(loop.items, names, now=now, wants_data=True))
        width = width_of(render(loop.max_in_flight, names, now=now))
        return cls(values=values, width=1 if loop.mode is LoopMode.SEQUENTIAL else width)

    async def run(self, run_item: Callable[[int], Awaitable[Outcome]]) -> list[Outcome]:
        """Run every item, as many at once as may; what it gave stands at its index."""
        outcomes: list[Outcome] = [Outcome()] * len(self.values)
        indices = iter(range(len(self.values)))

        async def take_turns() -> None:
            for index in indices:
                outcomes[index] = await run_item(index)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.width, len(self.values))):
                group.create_task(take_turns())
        return outcomes


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
