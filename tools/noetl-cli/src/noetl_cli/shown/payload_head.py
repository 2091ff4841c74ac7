"""The beginning of a payload for people: tables as tables, JSON as JSON, text as text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from noetl_cli.shown.tables import table_lines
from noetl_cli.shown.text import one_line

ARROW = "application/vnd.apache.arrow.stream"
_ARROW_START = b"\xff\xff\xff\xff"
_LONGEST_CELL = 60


def is_arrow(media_type: str, beginning: bytes) -> bool:
    """By what its reference says, else by how it begins."""
    return media_type == ARROW or beginning.startswith(_ARROW_START)


def head_lines(media_type: str, data: bytes, *, is_whole: bool, rows: int) -> Iterator[str]:
    """At most so many rows or lines of what is there; half of a table is shown as far as it goes."""
    lines = _arrow_lines(data, rows) if is_arrow(media_type, data) else None
    if lines is not None:
        yield from lines
        return
    value = _json(data) if is_whole else None
    table = _rows(value)
    if table is not None:
        yield from _table_lines(table[:rows], total=len(table))
    else:
        text = data.decode("utf-8", errors="replace") if value is None else _spelt(value)
        yield from (one_line(line) for line in islice(text.splitlines(), rows))


def _arrow_lines(data: bytes, rows: int) -> list[str] | None:
    """None if it only looks like a table."""
    # Imported here: it is large, and no other command needs it.
    import pyarrow as pa  # noqa: PLC0415

    found: list[dict[str, Any]] = []
    try:
        reader = pa.ipc.open_stream(io.BytesIO(data))
    except (pa.ArrowException, OSError):
        return None
    with reader:
        columns = [f"{field.name}: {field.type}" for field in reader.schema]
        # Only the beginning of the stream was fetched; and a table may hold what Python has no value for.
        with suppress(pa.ArrowException, OSError, ValueError, OverflowError):
            for batch in reader:
                found += batch.slice(0, rows - len(found)).to_pylist()
                if len(found) >= rows:
                    break
    return [", ".join(one_line(column) for column in columns), *_table_lines(found, total=None)]


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _rows(value: Any) -> list[dict[str, Any]] | None:
    """What looks like a table: a list of objects, or the rows of one."""
    rows = value.get("rows") if isinstance(value, dict) else value
    is_table = isinstance(rows, list) and rows and all(isinstance(row, dict) and row for row in rows)
    return rows if is_table else None


def _table_lines(rows: Sequence[dict[str, Any]], *, total: int | None) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if names:
        yield from table_lines([names, *([_cell(row.get(name)) for name in names] for row in rows)])
    if total is not None and total > len(rows):
        yield f"… {total - len(rows)} more rows"


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else _spelt(value, indent=None)
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def _spelt(value: Any, *, indent: int | None = 2) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=str)
