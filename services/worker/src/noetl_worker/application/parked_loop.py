"""Where the loop of a task stands while calls of its items wait, as part of the pipeline that is parked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl_core.canonical import JsonObject, JsonValue

from noetl_worker.application.child_calls import Waiting
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.parked_outcome import outcome_object, read_outcome
from noetl_worker.application.scopes import Written


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingItem:
    """An item whose call has started its child: which one, until when, and what the item has done before."""

    call_id: str
    child_execution_id: str
    path: str
    return_step: str
    until: float
    """When the call has waited long enough, by the clock of the worker that started the child."""
    attempt: int
    task_runs: int
    written: Written
    iteration: Mapping[str, JsonValue]

    def waiting(self, now: float) -> Waiting:
        """What to park on: the time that is left counts from the start of the call, whatever was waited for before."""
        return Waiting(
            call_id=self.call_id,
            child_execution_id=self.child_execution_id,
            path=self.path,
            return_step=self.return_step,
            timeout_seconds=max(self.until - now, 0.0),
        )


@dataclass(slots=True, kw_only=True)
class LoopStand:
    """Everything that the loop of a task remembers: its frozen items, what has ended, and what waits."""

    values: Sequence[JsonValue]
    width: int
    origin: Written | None = None
    """What parallel items see as set; sequential ones see what the pipeline has."""
    finished: dict[int, Outcome] = field(default_factory=dict)
    waiting: dict[int, WaitingItem] = field(default_factory=dict)

    @property
    def next_call(self) -> WaitingItem:
        """The call to park on: whose time is up first, so that its timeout is its own and nobody else's."""
        return min(self.waiting.values(), key=lambda item: item.until)

    def take(self, call_id: str) -> tuple[int, WaitingItem]:
        """The item that the pipeline was parked on: it waits no longer."""
        index = next(index for index, item in self.waiting.items() if item.call_id == call_id)
        return index, self.waiting.pop(index)

    def unstarted(self) -> list[int]:
        """Items whose turn has not come."""
        return [index for index in range(len(self.values)) if index not in self.finished and index not in self.waiting]


def loop_object(loop: LoopStand) -> JsonObject:
    """What is stored of a loop."""
    return {
        "values": list(loop.values),
        "width": loop.width,
        "origin": _written_object(loop.origin) if loop.origin else None,
        "finished": [[index, outcome_object(outcome)] for index, outcome in sorted(loop.finished.items())],
        "waiting": [[index, _item_object(item)] for index, item in sorted(loop.waiting.items())],
    }


def read_loop(fields: Mapping[str, Any]) -> LoopStand:
    """Read it back."""
    return LoopStand(
        values=fields["values"],
        width=fields["width"],
        origin=Written(**fields["origin"]) if fields["origin"] else None,
        finished={index: read_outcome(outcome) for index, outcome in fields["finished"]},
        waiting={
            index: WaitingItem(**{**item, "written": Written(**item["written"])}) for index, item in fields["waiting"]
        },
    )


def _written_object(written: Written) -> JsonObject:
    return {"variables": dict(written.variables), "step_scope": dict(written.step_scope)}


def _item_object(item: WaitingItem) -> JsonObject:
    return {
        "call_id": item.call_id,
        "child_execution_id": item.child_execution_id,
        "path": item.path,
        "return_step": item.return_step,
        "until": item.until,
        "attempt": item.attempt,
        "task_runs": item.task_runs,
        "written": _written_object(item.written),
        "iteration": dict(item.iteration),
    }
