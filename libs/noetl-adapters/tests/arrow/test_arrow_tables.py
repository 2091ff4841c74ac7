"""What goes into a table comes out as it was, or is refused with the column named."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_adapters.arrow import ipc
from noetl_adapters.arrow.ipc import BATCH_ROWS, ArrowTables, open_table
from noetl_core.errors import ColumnRefused, Corrupt

TABLES = ArrowTables()
NOON = datetime(2026, 7, 1, 12, 30, 15, 123456)


def typed(value: object) -> object:
    """A value with the types of all its parts, so that 1, 1.0 and true differ."""
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [typed(part) for part in value]
    return type(value).__name__, str(value) if isinstance(value, float) else value


@pytest.mark.parametrize(
    "values",
    [
        [1, -(2**63), 2**63 - 1, None],
        [1.5, -0.0, float("inf"), None],
        [True, False, None],
        ["", "a\0b", "ä€𝄞", None],
        [b"", b"\xff\x00", None],
        [None, None],
        [date(2026, 1, 1), date(1, 1, 1), None],
        [NOON, None],
        [NOON.replace(tzinfo=UTC), None],
        [Decimal("1.10"), Decimal("-99999999999999999999999.99"), None],
        [Decimal("0.0001"), Decimal("1E+2").quantize(Decimal("0.0001"))],
        [Decimal("1" + "0" * 50), Decimal(7)],
        [[1, 2], [], None, [None]],
        [[], []],
        [{"a": 1, "b": {"c": [1.5]}}, {"a": None, "b": {"c": []}}, None],
        [[{"k": "v"}], []],
    ],
    ids=lambda values: type(next((v for v in values if v is not None), None)).__name__,
)
def test_values_come_back_with_their_types(values: list[Any]) -> None:
    rows = [{"x": value} for value in values]
    assert typed(TABLES.decode(TABLES.encode(rows).data)) == typed(rows)


def test_times_keep_their_zone() -> None:
    rows = [{"at": NOON.replace(tzinfo=ZoneInfo("Europe/Vienna"))}]
    (back,) = TABLES.decode(TABLES.encode(rows).data)
    assert back["at"] == rows[0]["at"]
    assert back["at"].utcoffset() == rows[0]["at"].utcoffset()


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([1, "1"], "x"),
        ([1, 1.5], "x"),
        ([1, True], "x"),
        ([2**63], "x"),
        (["\ud800"], "x"),
        ([object()], "x"),
        ([{}], "x"),
        ([{"a": 1}, {"b": 1}], "x"),
        ([{"a": {"b": 1}}, {"a": {"b": "1"}}], "x.a.b"),
        ([[1, "a"]], "x[]"),
        ([[{"a": 1}, {"a": "1"}]], "x[].a"),
        ([Decimal("1.0"), Decimal("1.00")], "x"),
        ([Decimal("NaN")], "x"),
        ([Decimal("1E+3")], "x"),
        ([NOON, NOON.replace(tzinfo=UTC)], "x"),
        ([NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=ZoneInfo("Europe/Vienna"))], "x"),
        ([NOON, NOON.date()], "x"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused_by_name(values: list[Any], column: str) -> None:
    with pytest.raises(ColumnRefused) as refused:
        TABLES.encode([{"other": 1, "x": value} for value in values])
    assert refused.value.column == column


@pytest.mark.parametrize(
    ("rows", "column"),
    [([{"a": 1}, {"a": 1, "b": 2}], "b"), ([{"a": 1, "b": None}, {"a": 1}], "b"), ([{}], ""), ([{1: 2}], "1")],
)
def test_every_row_has_every_column(rows: list[dict[Any, Any]], column: str) -> None:
    with pytest.raises(ColumnRefused) as refused:
        TABLES.encode(rows)
    assert refused.value.column == column


def test_a_table_may_be_empty_or_very_wide() -> None:
    assert TABLES.decode(TABLES.encode([]).data) == []
    wide = [{f"column {number}": number for number in range(5_000)}]
    encoded = TABLES.encode(wide)
    assert TABLES.decode(encoded.data) == wide
    assert len(encoded.facts.columns) == 5_000


def test_the_digest_tells_schemas_apart_and_not_their_rows() -> None:
    one, other = TABLES.encode([{"a": 1}]).facts, TABLES.encode([{"a": 2}, {"a": 3}]).facts
    assert one.schema_digest == other.schema_digest
    assert one.schema_digest != TABLES.encode([{"a": "1"}]).facts.schema_digest
    assert one.schema_digest != TABLES.encode([{"b": 1}]).facts.schema_digest


def test_facts_are_read_from_the_bytes() -> None:
    encoded = ArrowTables(compression="zstd").encode([{"a": number, "b": "x"} for number in range(3 * BATCH_ROWS)])
    assert TABLES.facts(io.BytesIO(encoded.data)) == encoded.facts
    assert encoded.facts.row_count == 3 * BATCH_ROWS


@given(start=st.integers(0, 3 * BATCH_ROWS), size=st.none() | st.integers(0, 2 * BATCH_ROWS))
def test_a_slice_is_what_a_list_would_give(start: int, size: int | None) -> None:
    stop = None if size is None else start + size
    rows = TABLES.decode(SLICED, start=start, stop=stop)
    assert [row["a"] for row in rows] == list(range(2 * BATCH_ROWS + 5))[start:stop]


SLICED = TABLES.encode([{"a": number} for number in range(2 * BATCH_ROWS + 5)]).data


@pytest.mark.parametrize("data", [b"", b"nothing like it", TABLES.encode([{"a": 1}]).data[:-20]])
def test_other_bytes_are_no_table(data: bytes) -> None:
    with pytest.raises(Corrupt):
        TABLES.decode(data)
    with pytest.raises(Corrupt):
        TABLES.facts(io.BytesIO(data))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), json_values, min_size=1), max_size=5))
def test_any_rows_come_back_or_are_refused(rows: list[dict[str, Any]]) -> None:
    try:
        encoded = TABLES.encode(rows)
    except ColumnRefused:
        return
    assert typed(TABLES.decode(encoded.data)) == typed(rows)
    with pa.ipc.open_stream(encoded.data) as reader:  # any other reader of the format can read it as well
        assert reader.read_all().num_rows == len(rows)


def test_a_payload_is_opened_without_a_copy_of_its_bytes() -> None:
    encoded = TABLES.encode_json([{"a": number} for number in range(1000)], note=b"about them")
    data = memoryview(encoded.data)

    table = open_table(data)

    (column,) = table.column("a").chunks
    start = pa.py_buffer(encoded.data).address
    assert start <= column.buffers()[1].address < start + len(encoded.data)
    assert TABLES.note(data) == b"about them"
    assert TABLES.decode_json(data, start=998) == [{"a": 998}, {"a": 999}]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_header_and_some_batches_are_a_table_of_their_own(compression: Any) -> None:
    encoded = ArrowTables(compression=compression).encode_json([{"a": "x" * 100, "b": n} for n in range(30_000)])
    header, sizes = encoded.data[: encoded.header_bytes], [size for _, size in encoded.batches]
    start = encoded.header_bytes + sizes[0]

    second = header + encoded.data[start : start + sizes[1]]

    first_rows, second_rows = encoded.batches[0][0], encoded.batches[1][0]
    assert [row["b"] for row in TABLES.decode_json(second)] == list(range(first_rows, first_rows + second_rows))
    assert sum(rows for rows, _ in encoded.batches) == 30_000


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_rows_are_taken_a_few_at_a_time_over_the_borders_of_batches(compression: Any) -> None:
    wanted: list[Any] = [{"a": number, "b": {"c": [number]}} for number in range(2 * BATCH_ROWS + 10)]
    rows = TABLES.rows_json(ArrowTables(compression=compression).encode_json(wanted).data)

    taken = [rows.take(5000) for _ in range(5)]

    assert [len(part) for part in taken] == [5000, 5000, 5000, 1394, 0]
    assert [row for part in taken for row in part] == wanted


def test_bytes_that_are_no_table_have_no_rows_to_take() -> None:
    with pytest.raises(Corrupt):
        TABLES.rows_json(b"\xff\xff\xff\xffnothing")


def test_batches_are_small_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = TABLES.encode_json([{"a": "x" * 10_000, "b": n} for n in range(500)])
    long = TABLES.encode_json([{"a": n} for n in range(2 * BATCH_ROWS)])

    assert max(size for _, size in wide.batches) < 2 * 1024 * 1024
    assert [rows for rows, _ in long.batches] == [BATCH_ROWS, BATCH_ROWS]
    monkeypatch.setattr(ipc, "MAX_BATCHES", 4)
    assert len(TABLES.encode_json([{"a": "x" * 900_000} for _ in range(5)]).batches) == 3
