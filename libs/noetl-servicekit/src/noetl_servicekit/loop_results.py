"""What a loop gave, put together from the outcomes that the log has of its items: nobody else collects them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Protocol

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.commands.events import CallDone, CallFailed
from noetl_core.executions.reducing import REDUCE
from noetl_core.ids import parse_id
from noetl_core.locator import parse
from noetl_core.loops.events import LoopDone
from noetl_core.loops.state import LOOP_REFERENCE
from noetl_core.payloads import payload_ref_of
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.recorded import record
from noetl_core.stages.partitions import Part, part_of, united

from noetl_servicekit.chunk_rows import chunk_refs
from noetl_servicekit.frame_results import FrameResults
from noetl_servicekit.stored_values import StoredValues

PAGE: Final = 1000
AT_ONCE: Final = 16
"""Payloads that are read at the same time."""
KEPT: Final = 4
"""Loops whose results are kept: once a loop is done, they never change."""
MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
"""Of one of them, as stored; larger ones are read again."""


class ReadEvents(Protocol):
    """The part of the event log that is needed here."""

    async def read(
        self, scope: Scope | None, execution_id: int, *, from_version: int = 1, to_version: int = 0, limit: int = 500
    ) -> EventPage:
        """Events of a version range, at most `limit`."""
        ...


def is_loop_reference(reference: object) -> bool:
    """Whether a result is that of a loop, whose value stands in many places."""
    return isinstance(reference, Mapping) and reference.get("type") == LOOP_REFERENCE


def loop_counts(result: Mapping[str, Any]) -> JsonObject:
    """What the event that ended a loop tells of its result: all but its list."""
    context = result["context"]
    stats: JsonObject = {name: context[name] for name in ("total", "success", "failed")}
    if context.get("cursor"):
        names = ("status", "processed", "failed", "breaks", "frame_count")
        return {**{name: context[name] for name in names}, "stats": stats}
    return {"stats": stats, "count": context["total"], "status": context["status"]}


def list_name(result: Mapping[str, Any]) -> str:
    """What its list is called: a loop over a cursor lists its frames, and no results (§7.5)."""
    return "frames" if result["context"].get("cursor") else "results"


def _execution_of(reference: Mapping[str, Any], reader: int) -> int:
    """Whose log has the items: a redriven execution refers to loops of the one that it takes up."""
    match parse(reference["ref_id"]).segments:
        case ("execution", execution_id, "loop", _):
            return parse_id(execution_id)
        case _:
            return reader


def _size(result: Mapping[str, Any]) -> int:
    size = (result.get("reference") or {}).get("bytes", 0)
    return size if isinstance(size, int) else 0


class LoopResults:
    """Reads the log from the start of a loop to its end, then the payload of each item."""

    def __init__(self, log: ReadEvents, values: StoredValues) -> None:
        self._log = log
        self._values = values
        self._kept: OrderedDict[str, JsonObject] = OrderedDict()

    async def __call__(self, scope: Scope | None, execution_id: int, result: Mapping[str, Any]) -> JsonObject:
        """§7.3: `{results, stats, count, status}`; raises `NotFound` when the payload of an item is gone."""
        reference = result["reference"]
        kept = self._kept.get(reference["ref_id"])
        if kept is not None:
            self._kept.move_to_end(reference["ref_id"])
            return kept
        context = result["context"]
        outcomes, frames = await self.ends(scope, execution_id, result)
        if frames.kind == REDUCE:
            return await self._united(scope, frames)
        name = list_name(result)
        if name == "frames":
            slots = frames.listed()
        elif frames.process:
            slots = await frames.slots(context["total"], self._values, at_once=AT_ONCE)
        else:
            slots = await self._slots(context["total"], outcomes)
        told: JsonObject = {name: slots, **loop_counts(result)}
        if sum(map(_size, outcomes.values())) + frames.stored_bytes <= MAX_KEPT_BYTES:
            self._kept[reference["ref_id"]] = told
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return told

    async def ends(
        self, scope: Scope | None, execution_id: int, result: Mapping[str, Any]
    ) -> tuple[Mapping[int, Mapping[str, Any]], FrameResults]:
        """What the log says of each item, by index, or of the frames that they ran in; nothing is loaded."""
        frames = FrameResults()
        reference = result["reference"]
        if not (result.get("context") or {"total": 1})["total"]:
            return {}, frames
        where = _execution_of(reference, execution_id)
        return await self._outcomes(scope, where, reference, frames), frames

    async def _united(self, scope: Scope | None, frames: FrameResults) -> JsonObject:
        """The outputs of a reduce as one; rows that are stored in chunks stay there if all of them are."""
        outputs = await frames.outputs(self._values)
        parts = [part for output in outputs if (part := part_of(output)) != []]
        if scope is not None and len({isinstance(part, dict) for part in parts}) > 1:
            parts = [await self._loaded(scope, part) for part in parts]
        return united(outputs, parts)

    async def _loaded(self, scope: Scope, part: Part) -> Part:
        if isinstance(part, list):
            return part
        refs = chunk_refs(part, tenant_id=scope.tenant_id, organization_id=scope.organization_id)
        values = [await self._values.get(ref) for ref in refs]
        return [row for value in values for row in (value if isinstance(value, list) else [value])]

    async def _outcomes(
        self, scope: Scope | None, execution_id: int, reference: Mapping[str, Any], frames: FrameResults
    ) -> dict[int, Mapping[str, Any]]:
        """The result of each item by index; the first one counts. Those of rows in frames go to `frames`."""
        loop_id, version = reference["loop_id"], int(reference["from_version"])
        found: dict[int, Mapping[str, Any]] = {}
        while True:
            page = await self._log.read(scope, execution_id, from_version=version, limit=PAGE)
            for stored in page.events:
                content = record(stored).content
                if isinstance(content, LoopDone) and content.loop_id == loop_id:
                    return found
                frames.take(content, loop_id)
                if isinstance(content, CallDone | CallFailed) and content.loop_id == loop_id:
                    found.setdefault(content.loop_iteration_index or 0, content.result or {})
            if not page.events or page.events[-1].stream_version >= page.head_version:
                return found
            version = page.events[-1].stream_version + 1

    async def _slots(self, total: int, outcomes: Mapping[int, Mapping[str, Any]]) -> list[JsonValue]:
        slots: list[JsonValue] = [None] * total  # an item that never began has no result
        indices = iter(sorted(outcomes))

        async def take_turns() -> None:
            for index in indices:
                slots[index] = await self._slot(outcomes[index])

        turns = [asyncio.create_task(take_turns()) for _ in range(min(AT_ONCE, len(outcomes)))]
        try:
            await asyncio.gather(*turns)
        finally:
            for turn in turns:
                turn.cancel()
        return slots

    async def _slot(self, result: Mapping[str, Any]) -> JsonValue:
        reference = result.get("reference")
        if reference:
            return await self._values.get(payload_ref_of(reference))
        error = (result.get("context") or {}).get("error")
        return {"status": "error", "error": error} if error else None
