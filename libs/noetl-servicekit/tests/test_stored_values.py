"""A stored value comes back as canonical JSON would give it, whichever form it was stored in."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import decode, encode
from noetl_core.errors import Corrupt, NotCanonical
from noetl_core.ports.tables import MEDIA_TYPE as ARROW
from noetl_core.ports.tables import is_table
from noetl_core.tabular import MAX_REST_BYTES
from noetl_servicekit.stored_values import MEDIA_TYPE as JSON
from noetl_servicekit.stored_values import decode_value, encode_value

TABLES = ArrowTables()

scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def typed(value: object) -> object:
    """A value with the types of all its parts, so that 1, 1.0 and true differ."""
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [typed(part) for part in value]
    return type(value).__name__, value


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of columns that are mostly of one kind, as tables are."""
    kinds = st.sampled_from(
        [st.none(), st.booleans(), st.text(max_size=5), numbers, st.lists(numbers, max_size=3), values]
    )
    columns = draw(st.dictionaries(st.text(max_size=4), kinds, min_size=1, max_size=4))
    count = draw(st.integers(1, 5))
    return [{name: draw(st.none() | column) for name, column in columns.items()} for _ in range(count)]


@given(rows=tables(), rest=st.dictionaries(st.text(max_size=4), values, max_size=3), is_listed=st.booleans())
def test_a_table_comes_back_as_its_canonical_json_does(rows: Any, rest: Any, is_listed: bool) -> None:
    result = rows if is_listed else {**rest, "rows": rows, "again": {"rows": rows}}

    stored = encode_value(result, TABLES)

    assert typed(decode_value(stored.data, TABLES)) == typed(decode(encode(result)))
    assert stored.data == encode_value(result, TABLES).data  # the same rows are the same bytes
    assert (stored.media_type == ARROW) == is_table(stored.data)


@given(values)
def test_any_value_comes_back_as_its_canonical_json_does(value: Any) -> None:
    assert typed(decode_value(encode_value(value, TABLES).data, TABLES)) == typed(decode(encode(value)))


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1, "b": None, "c": "x"}, {"a": 2.5, "b": None, "c": None}],
        [{"a": [1, 2.0], "b": {"c": 1.0, "d": [{"e": 3.0}]}}],
        [{"a": 1.0}, {"a": -0.0}],
        [{f"column {number}": number for number in range(2_000)}],
    ],
)
def test_tables_of_these_kinds_are_arrow(rows: Any) -> None:
    stored = encode_value({"rows": rows, "row_count": len(rows)}, TABLES)

    assert stored.media_type == ARROW
    assert stored.table is not None
    assert stored.table.facts.row_count == len(rows)
    assert decode_value(stored.data, TABLES) == {"rows": rows, "row_count": len(rows)}


@pytest.mark.parametrize(
    "result",
    [
        {"rows": [{"a": 1}, {"a": "1"}]},
        {"rows": [{"a": 1}, {"b": 1}]},
        {"rows": [{"a": {"b": 1}}, {"a": {"c": 1}}]},
        {"rows": [{"a": {}}]},
        {"rows": []},
        {"rows": [{"a": 1}], "text": "x" * MAX_REST_BYTES},
        {"status": "ok"},
        [1, 2],
    ],
    ids=lambda result: str(result)[:40],
)
def test_what_no_table_holds_exactly_is_json(result: Any) -> None:
    stored = encode_value(result, TABLES)

    assert (stored.media_type, stored.data) == (JSON, encode(result))
    assert decode_value(stored.data, TABLES) == result


def test_a_deep_table_is_json() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    assert encode_value([{"a": deep}], TABLES).media_type == JSON


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ([{"a": 1.5}, {"a": float("nan")}], "/rows/1/a"),
        ([{"a": 2**53}], "/rows/0/a"),
        ([{"a": "\ud800"}], "/rows/0/a"),
        ([{"\ud800": 1}], "/rows/0/"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(rows: Any, place: str) -> None:
    with pytest.raises(NotCanonical) as refused:
        encode_value({"rows": rows}, TABLES)
    assert place in refused.value.message


def test_compression_changes_the_bytes_and_not_the_value_or_what_is_large() -> None:
    result: Any = {"rows": [{"text": "again and again"} for _ in range(10_000)]}

    plain, small = encode_value(result, TABLES), encode_value(result, ArrowTables(compression="zstd"))

    assert len(small.data) < len(plain.data) / 5
    assert abs(small.plain_bytes - plain.plain_bytes) < 1024
    assert decode_value(small.data, TABLES) == result


def test_columns_of_other_writers_are_told_as_sql_tools_tell_them() -> None:
    table = pa.table(
        {
            "price": pa.array(["1.10", "2.00"], pa.string()).cast(pa.decimal128(10, 2)),
            "at": pa.array([0, 1], pa.timestamp("us", tz="UTC")),
            "id": pa.array([1, 2**60], pa.int64()),
            "raw": pa.array([b"\xff", None], pa.binary()),
            "rate": pa.array([float("nan"), 1.0], pa.float64()),
            "nested": pa.array([[{"d": 1}], []], pa.list_(pa.struct([("d", pa.date32())]))),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)

    assert decode_value(sink.getvalue().to_pybytes(), TABLES) == [
        {
            "price": 1.1,
            "at": "1970-01-01T00:00:00+00:00",
            "id": 1,
            "raw": "/w==",
            "rate": "NaN",
            "nested": [{"d": "1970-01-02"}],
        },
        {
            "price": 2,
            "at": "1970-01-01T00:00:00.000001+00:00",
            "id": str(2**60),
            "raw": None,
            "rate": 1,
            "nested": [],
        },
    ]


def test_half_a_table_is_corrupt() -> None:
    data = encode_value([{"a": 1}], TABLES).data
    with pytest.raises(Corrupt):
        decode_value(data[: len(data) // 2], TABLES)


# A payload as it lies in stores: whoever changes what is written must still read this, and say so in ADR 0027.
STORED = (
    "eNqFUb1KxEAQns3PuUiUFEFSWKVKIXJYiY3nO1gIxyHhkkLRLCQRwfPAB/ABLCwtfBhLH8Zu/fYnx7J4ODA7f9/OzH4rpZRvjCgl"
    "Jbu0TxOKicODsGiTT3BGNl9rH2WoynOcqsbhn9paCV0V1VCczedFJx77YrE4KrqmR2alEtdL8dAiOFmvzQSiVjTD3fFtL1rT4wv6"
    "Cr2yPS+xK6buZfBzZwe1YwCtBqIXYJ4NjqUOjqx9Em2j/E9gPgwuVLhDBxdD+6XoGnDBoROdDejb4GMfr2xb3TfGj3ScUqbv7miG"
    "UssjC/y7au+b2nDIgeYmzWa2jpGyxCMzGyd0YH8o0Z0pjPQbR7xiMrf/oTh9d/gZhdN2ST3LrM03842U1obWTr0+U6/P7I9ZsbcX"
    "OTHzYvon3naPOdjQ2feirpzKz/m4ptR/TPQLsCBF1A=="
)
STORED_VALUE: Any = {
    "rows": [
        {"id": 1, "name": "Ada", "score": 1.5, "at": {"zone": None}},
        {"id": 2, "name": None, "score": 2, "at": {"zone": None}},
    ],
    "row_count": 2,
}


def test_what_was_stored_before_is_read_and_the_same_rows_are_still_the_same_bytes() -> None:
    stored = zlib.decompress(base64.b64decode(STORED))

    assert decode_value(stored, TABLES) == STORED_VALUE
    assert encode_value(STORED_VALUE, TABLES).data == stored
