"""What the frames of a stage gave, as its events say: each of them has stored the outcomes of its rows as one list."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import Corrupt
from noetl_core.payloads import payload_ref_of
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameFailed, StageOpened
from noetl_core.stages.fold import attempts_exhausted
from noetl_core.stages.state import FrameOutcome

from noetl_servicekit.stored_values import StoredValues


@dataclass(slots=True)
class FrameResults:
    """The ends of frames in the order of the log, each by its first row."""

    process: str = ""
    """Whether there is an outcome for each row or for each frame; empty if the loop has no frames."""
    kind: str = ""
    """Of the stage: a frame of a reduce has stored its output, and no list of outcomes."""
    ends: dict[int, FrameCommitted | FrameFailed | FrameAbandoned] = field(default_factory=dict)

    def take(self, content: object, loop_id: str) -> None:
        """One event of the execution, of this loop or not."""
        match content:
            case StageOpened() if content.loop_id == loop_id:
                self.process = str(content.policy.get("process", "row"))
                self.kind = content.kind
            case FrameCommitted() if content.loop_id == loop_id and content.stop > content.start:
                self.ends.setdefault(content.start, content)
            case FrameFailed() | FrameAbandoned() if content.loop_id == loop_id:
                if content.outcome == FrameOutcome.FINAL and content.stop > content.start:
                    self.ends.setdefault(content.start, content)
            case _:
                pass

    @property
    def stored_bytes(self) -> int:
        """How much there is to be read."""
        return sum(_bytes(end.result) for end in self.ends.values() if isinstance(end, FrameCommitted))

    def listed(self) -> list[JsonValue]:
        """The frames that had rows, in the order of these."""
        return [_described(self.ends[start]) for start in sorted(self.ends) if self.ends[start].stop > start]

    async def outputs(self, values: StoredValues) -> list[JsonValue]:
        """What each frame of a reduce gave, in the order of partitions."""
        committed = [end for _, end in sorted(self.ends.items()) if isinstance(end, FrameCommitted)]
        return [await values.get(payload_ref_of((end.result or {})["reference"])) for end in committed]

    async def slots(self, total: int, values: StoredValues, *, at_once: int) -> list[JsonValue]:
        """The result of each row, or of each frame where these were processed as a whole; null where nothing ran."""
        starts = sorted(self.ends)
        lists: dict[int, list[JsonValue]] = {}
        turns = iter(starts)

        async def take_turns() -> None:
            for start in turns:
                lists[start] = await _outcomes(self.ends[start], values)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(starts))):
                group.create_task(take_turns())
        if self.process == "frame":
            return [lists[start][0] for start in starts]
        slots: list[JsonValue] = [None] * total
        for start, outcomes in lists.items():
            slots[start : start + len(outcomes)] = outcomes
        return slots


def _described(end: FrameCommitted | FrameFailed | FrameAbandoned) -> JsonObject:
    rows = end.stop - end.start
    described: JsonObject = {"frame_id": end.frame_id, "index": end.frame_index, "row_count": rows}
    if isinstance(end, FrameCommitted):
        status = "ok" if not end.failed else ("partial" if end.success else "error")
        error = dict(end.first_error) if end.first_error else None
        return {**described, "status": status, "failed": end.failed, **({"error": error} if error else {})}
    return {**described, "status": "error", "failed": rows, "error": error_of(end)}


def error_of(end: FrameFailed | FrameAbandoned) -> JsonValue:
    """Why a frame that failed as a whole has."""
    if isinstance(end, FrameAbandoned):
        return attempts_exhausted(end.attempt)
    error: JsonValue = ((end.result or {}).get("context") or {}).get("error")
    return error


async def _outcomes(end: FrameCommitted | FrameFailed | FrameAbandoned, values: StoredValues) -> list[JsonValue]:
    if isinstance(end, FrameCommitted):
        value = await values.get(payload_ref_of((end.result or {})["reference"]))
        if not isinstance(value, list):
            raise Corrupt(f"frame {end.frame_id} has stored something that is no list of outcomes")
        return value
    error = error_of(end)
    return [{"status": "error", "error": error} for _ in range(end.stop - end.start)]


def _bytes(result: Mapping[str, Any] | None) -> int:
    size = ((result or {}).get("reference") or {}).get("bytes", 0)
    return size if isinstance(size, int) else 0
