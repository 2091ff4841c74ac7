"""Finds what a reduce stage reads: payloads that other steps have put out, as rows or as a table for Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import InvalidInput
from noetl_core.executions.reducing import REDUCE
from noetl_core.loops.intervals import Intervals
from noetl_core.payloads import PayloadRef, payload_ref_of
from noetl_core.playbook.model import Reduce
from noetl_core.ports.commands import GrantedCommand
from noetl_core.ports.event_log import Scope
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from noetl_core.stages.events import FrameCommitted
from noetl_core.stages.partitions import CHUNKS, RESULT_TYPE, outcomes_type, partition_of, parts_in
from noetl_core.stages.rows import FrameRows
from noetl_servicekit.chunk_rows import LoadRows, chunk_refs, chunks_of
from noetl_servicekit.failed_rows import failed_places, looks_failed
from noetl_servicekit.frame_results import FrameResults
from noetl_servicekit.loop_results import LoopResults, is_loop_reference

from noetl_worker.application.failed_rows import places_of

PARTITION_TABLE: Final = "__partitions"
"""The name under which a spark task finds the table of its partition; templates have the rows as `partitions`."""

Entry = list[JsonValue]
"""A payload as marks have it: sha256, bytes, rows, and as what it is to be read."""


class ReadPartitions:
    """Reads the log for where the output is; rows are loaded only for tasks that run in this process."""

    def __init__(self, rows: LoadRows, loops: LoopResults | None) -> None:
        self._rows = rows
        self._loops = loops

    async def entries(self, command: GrantedCommand, frame: FrameRows) -> list[Entry]:
        """Every payload with output of the steps, in their order and in that of their items; failed ones gave none."""
        found: list[Entry] = []
        for source in frame.sources:
            reference = source["reference"]
            if is_loop_reference(reference):
                found += await self._of_loop(command, reference)
            else:
                found.append(_entry(reference, RESULT_TYPE))
        return found

    def table(self, entries: Sequence[Entry], frame: FrameRows, reduce: Reduce) -> JsonObject:
        """What a spark task reads as `partitions`: executors load the payloads, and keep the rows of the partition."""
        table: JsonObject = {CHUNKS: list(entries)}
        if reduce.partitions > 1:
            table["partition"] = {"by": list(reduce.by), "count": reduce.partitions, "index": frame.start}
        return table

    async def rows(
        self, command: GrantedCommand, entries: Iterable[Entry], frame: FrameRows, reduce: Reduce
    ) -> list[JsonValue]:
        """The rows of a partition; raises `NotFound` (REFERENCE_NOT_AVAILABLE) when some are gone."""
        kept: list[JsonValue] = []
        for entry in entries:
            for rows in await self._rows_in(command, entry):
                kept += rows if reduce.partitions == 1 else _of_partition(rows, frame.start, reduce)
        return kept

    async def _rows_in(self, command: GrantedCommand, entry: Entry) -> list[list[JsonValue]]:
        (chunk,) = chunks_of([entry], tenant_id=command.tenant_id, organization_id=command.organization_id)
        found: list[list[JsonValue]] = []
        for part in parts_in(await self._rows.values.get(chunk.ref), chunk.ref.media_type):
            if isinstance(part, list):
                found.append(part)
                continue
            refs = chunk_refs(part, tenant_id=command.tenant_id, organization_id=command.organization_id)
            found += [await self._rows.rows(ref) for ref in refs]
        return found

    async def _of_loop(self, command: GrantedCommand, reference: Mapping[str, Any]) -> list[Entry]:
        if self._loops is None:
            raise InvalidInput("what a loop gave cannot be read here")
        scope = Scope(tenant_id=command.tenant_id, organization_id=command.organization_id)
        outcomes, frames = await self._loops.ends(scope, command.key.execution_id, {"reference": reference})
        if frames.process:
            return [await self._of_frame(end, frames) for _, end in sorted(frames.ends.items()) if _gave_rows(end)]
        items = (outcomes[index] for index in sorted(outcomes))
        return [
            _entry(item["reference"], RESULT_TYPE)
            for item in items
            if item.get("status") != "error" and item.get("reference")
        ]

    async def _of_frame(self, end: object, frames: FrameResults) -> Entry:
        if not isinstance(end, FrameCommitted):
            raise AssertionError("only what was committed has outcomes")
        reference = (end.result or {})["reference"]
        if frames.kind == REDUCE:
            return _entry(reference, RESULT_TYPE)
        failed = await self._failed(end, payload_ref_of(reference)) if end.failed else ()
        return _entry(reference, outcomes_type(failed))

    async def _failed(self, end: FrameCommitted, ref: PayloadRef) -> Intervals:
        """Which outcomes are failures; where the event does not tell, those that look like it."""
        told = await failed_places(end.result or {}, self._rows.values)
        if told is not None:
            return told
        outcomes = await self._rows.values.get(ref)
        listed = outcomes if isinstance(outcomes, list) else []
        return places_of(place for place, outcome in enumerate(listed) if looks_failed(outcome))


def _gave_rows(end: object) -> bool:
    return isinstance(end, FrameCommitted) and end.success > 0


def _entry(reference: Mapping[str, Any], read_as: str) -> Entry:
    is_table = reference.get("media_type") == TABLE_MEDIA_TYPE
    media_type = TABLE_MEDIA_TYPE if is_table else read_as
    return [reference["sha256"], reference.get("bytes", 0), reference.get("row_count", 0), media_type]


def _of_partition(rows: Iterable[JsonValue], index: int, reduce: Reduce) -> list[JsonValue]:
    return [row for row in rows if partition_of(row, by=reduce.by, partitions=reduce.partitions) == index]
