"""What a reduce stage reads: the rows that items have put out, and which of its partitions a row belongs to. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.loops.intervals import Intervals, holds

UNITED_KEYS: Final = ("status", "row_count", "columns", "partition_count", "rows")
"""What the outputs of several partitions are together."""
CHUNKS: Final = "_chunks"
"""What stands in a result instead of rows that are stored in payloads of their own."""
RESULT_TYPE: Final = "application/vnd.noetl.result+json"
"""A payload that is to be read as the result of one item."""
OUTCOMES_TYPE: Final = "application/vnd.noetl.outcomes+json"
"""A payload that is to be read as the outcomes of a frame; `failed` says which of them are none."""
_FAILED: Final = re.compile(r";\s*failed=([\d,-]*)")

Part: TypeAlias = "list[JsonValue] | JsonObject"
"""Rows, or the mark of rows that are stored in chunks."""


def part_of(result: JsonValue) -> Part:
    """§7.7: the `rows` of an item, else its list `data`, else its result as one row."""
    if isinstance(result, dict):
        for key in ("rows", "data"):
            held = result.get(key)
            if isinstance(held, list) or is_mark(held):
                return held  # type: ignore[return-value]  # a list or a mark
        return [result]
    return result if isinstance(result, list) else [result]


def parts_in(value: JsonValue, media_type: str) -> Iterator[Part]:
    """What a payload of one of the types above adds to the rows; failed items add nothing."""
    if not media_type.startswith(OUTCOMES_TYPE):
        yield part_of(value)
        return
    failed = failed_in(media_type)
    for place, outcome in enumerate(value if isinstance(value, list) else ()):
        if not holds(failed, place):
            yield part_of(outcome)


def outcomes_type(failed: Intervals) -> str:
    """The type of a frame's outcomes, some of which failed: by their places in the list."""
    if not failed:
        return OUTCOMES_TYPE
    places = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in failed)
    return f"{OUTCOMES_TYPE}; failed={places}"


def failed_in(media_type: str) -> Intervals:
    """The places that `outcomes_type` was told of."""
    found = _FAILED.search(media_type)
    if found is None or not found[1]:
        return ()
    ends = (place.partition("-") for place in found[1].split(","))
    return tuple((int(first), int(last or first)) for first, _, last in ends)


def is_mark(value: object) -> bool:
    """Whether it stands for rows that are stored in chunks."""
    return isinstance(value, Mapping) and len(value) == 1 and isinstance(value.get(CHUNKS), list)


def partition_of(row: JsonValue, *, by: Sequence[str], partitions: int) -> int:
    """Where a row goes: rows that agree in these columns go to the same place."""
    known = row if isinstance(row, dict) else {}
    return zlib.crc32(encode([known.get(column) for column in by])) % partitions


def columns_of(outputs: Iterable[JsonValue]) -> list[JsonValue]:
    """The columns of all outputs, each once, in the order in which they are met."""
    names: dict[str, None] = {}
    for output in outputs:
        told = output.get("columns") if isinstance(output, dict) else None
        if isinstance(told, list):
            names.update(dict.fromkeys(str(one) for one in told))
            continue
        part = part_of(output)
        for row in part if isinstance(part, list) else ():
            names.update(dict.fromkeys(row if isinstance(row, dict) else ()))
    return [*names]


def united(outputs: Sequence[JsonValue], parts: Sequence[Part]) -> JsonObject:
    """The outputs of all partitions as one, without a look at rows that are stored in chunks.

    Parts are of one kind, all rows or all marks.
    """
    chunks = [entry for part in parts if isinstance(part, dict) for entry in _entries(part)]
    rows = [row for part in parts if isinstance(part, list) for row in part]
    counts = [entry[2] for entry in chunks if isinstance(entry, list)]
    return {
        "status": "success",
        "row_count": len(rows) + sum(int(str(count)) for count in counts),
        "columns": columns_of(outputs),
        "partition_count": len(outputs),
        "rows": {CHUNKS: chunks} if chunks else rows,
    }


def _entries(mark: JsonObject) -> list[JsonValue]:
    entries = mark.get(CHUNKS)
    return entries if isinstance(entries, list) else []
