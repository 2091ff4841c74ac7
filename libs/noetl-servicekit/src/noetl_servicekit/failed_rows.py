"""Rows of a loop that failed, with their values and errors, as the log and the payloads that it refers to tell them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.commands.events import CallDone, CallFailed
from noetl_core.errors import Corrupt
from noetl_core.loops.events import LoopDone, LoopStarted
from noetl_core.loops.intervals import Intervals
from noetl_core.payloads import PayloadRef, payload_ref_of
from noetl_core.ports.event_log import Scope
from noetl_core.recorded import record
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameFailed, FrameStarted, StageOpened

from noetl_servicekit.frame_results import FrameResults, error_of
from noetl_servicekit.loop_results import PAGE, ReadEvents
from noetl_servicekit.stored_values import StoredValues

TOLD: Final = "failed_rows"
STORED: Final = "failed_rows_ref"


async def failed_places(result: Mapping[str, Any], values: StoredValues) -> Intervals | None:
    """The failed rows of a commit, by their places in its list; None if it does not tell."""
    context = result.get("context") or {}
    runs = context.get(TOLD)
    if runs is None and context.get(STORED):
        runs = await values.get(PayloadRef.from_json(context[STORED]))
    if runs is None:
        return None
    try:
        return tuple((int(first), int(last)) for first, last in runs)
    except (TypeError, ValueError) as exc:
        raise Corrupt("the failed rows of a frame are told in a way that nobody understands") from exc


def looks_failed(outcome: JsonValue) -> bool:
    """Whether an outcome has the form of a failure, where the event does not tell which ones are."""
    return isinstance(outcome, dict) and outcome.get("status") == "error" and isinstance(outcome.get("error"), dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRow:
    """A row that failed for good."""

    index: int
    """Its place in the loop."""
    row: JsonValue
    error: JsonObject
    """What became of it: kind, code, message."""
    frame_id: str = ""
    """The frame that tried it last; empty if items were told one by one."""


@dataclass(slots=True)
class _Told:
    """What the log says of a loop and its failures; bounded by these, not by its rows."""

    items: tuple[Any, ...] = ()
    collection: PayloadRef | None = None
    claims: list[tuple[int, PayloadRef]] = field(default_factory=list)
    """Rows that frames have claimed through a cursor, by the index of the first."""
    frames: FrameResults = field(default_factory=FrameResults)
    calls: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def take(self, content: object, loop_id: str) -> None:
        if getattr(content, "loop_id", None) != loop_id:
            return
        match content:
            case LoopStarted() | StageOpened():
                self.items, self.collection = content.items or (), content.payload_ref
            case FrameStarted() if content.payload_ref is not None and content.start is not None:
                self.claims.append((content.start, content.payload_ref))
            case CallDone() | CallFailed():
                self.calls.setdefault(content.loop_iteration_index or 0, content.result or {})
            case FrameCommitted() if not content.failed:
                return
            case _:
                pass
        self.frames.take(content, loop_id)


class FailedRows:
    """Reads the log from the start of a loop to its end, then what frames with failures have stored."""

    def __init__(self, log: ReadEvents, values: StoredValues) -> None:
        self._log = log
        self._values = values

    async def __call__(
        self, scope: Scope | None, execution_id: int, *, loop_id: str, from_version: int
    ) -> AsyncIterator[FailedRow]:
        """The rows in order; raises `NotFound` when payloads are gone."""
        told = await self._told(scope, execution_id, loop_id, max(from_version, 1))
        told.claims.sort(key=lambda claim: claim[0])
        rows = _Rows(told, self._values)
        for index, result in sorted(told.calls.items()):
            if result.get("status") == "error":
                error = (result.get("context") or {}).get("error") or {}
                yield FailedRow(index=index, row=await rows.at(index), error=dict(error))
        for start, end in sorted(told.frames.ends.items()):
            async for place, error in self._failures(end):
                index = start + place
                yield FailedRow(index=index, row=await rows.at(index), error=error, frame_id=end.frame_id)

    async def _told(self, scope: Scope | None, execution_id: int, loop_id: str, version: int) -> _Told:
        told = _Told()
        while True:
            page = await self._log.read(scope, execution_id, from_version=version, limit=PAGE)
            for stored in page.events:
                content = record(stored).content
                told.take(content, loop_id)
                if isinstance(content, LoopDone) and content.loop_id == loop_id:
                    return told
            if not page.events or page.events[-1].stream_version >= page.head_version:
                return told
            version = page.events[-1].stream_version + 1

    async def _failures(
        self, end: FrameCommitted | FrameFailed | FrameAbandoned
    ) -> AsyncIterator[tuple[int, JsonObject]]:
        """Places of failed rows in a frame, with their errors; one that failed as a whole has failed for all."""
        if not isinstance(end, FrameCommitted):
            error = error_of(end)
            for place in range(end.stop - end.start):
                yield place, dict(error) if isinstance(error, Mapping) else {}
            return
        result = end.result or {}
        outcomes = await self._values.get(payload_ref_of(result["reference"]))
        if not isinstance(outcomes, list):
            raise Corrupt(f"frame {end.frame_id} has stored something that is no list of outcomes")
        runs = await failed_places(result, self._values)
        if runs is None:  # a worker that is no NoETL worker has counted them only
            runs = tuple((place, place) for place, one in enumerate(outcomes) if looks_failed(one))
        for first, last in runs:
            for place in range(first, min(last + 1, len(outcomes))):
                outcome = outcomes[place]
                error = outcome.get("error") if isinstance(outcome, dict) else None
                yield place, error if isinstance(error, dict) else {}


class _Rows:
    """Values of rows by index; the last stored list is kept, since neighbours stand in the same one."""

    def __init__(self, told: _Told, values: StoredValues) -> None:
        self._told = told
        self._values = values
        self._firsts = [first for first, _ in told.claims]
        self._kept: tuple[str, list[JsonValue]] = ("", [])

    async def at(self, index: int) -> JsonValue:
        """The row; raises `Corrupt` if the log does not say where it is."""
        told, begins = self._told, 0
        ref = told.collection
        if told.claims:
            begins, ref = told.claims[bisect_right(self._firsts, index) - 1]
        rows: Sequence[JsonValue] = told.items if ref is None else await self._list(ref)
        if not 0 <= index - begins < len(rows):
            raise Corrupt(f"the log names a row {index} that is in no collection")
        return rows[index - begins]

    async def _list(self, ref: PayloadRef) -> list[JsonValue]:
        if self._kept[0] != ref.uri:
            value = await self._values.get(ref)
            if not isinstance(value, list):
                raise Corrupt(f"the collection {ref.uri} is no list")
            self._kept = ref.uri, value
        return self._kept[1]
