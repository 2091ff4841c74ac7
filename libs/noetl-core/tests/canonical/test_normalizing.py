"""What Python programs return becomes a JSON value with one reading, or is refused with its place."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from enum import Enum, StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.canonical import MAX_DEPTH, JsonValue, decode, encode, normalize
from noetl_core.errors import NotCanonical

EAST = timezone(timedelta(hours=5, minutes=30))
Row = namedtuple("Row", ["id", "name"])


class Colour(StrEnum):
    RED = "red"


class OldColour(str, Enum):  # noqa: UP042 - its str() is not its value, which is the point
    RED = "red"


@dataclass
class Custom:
    name: str


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        (Row(1, "a"), [1, "a"]),
        (OrderedDict(a=1), {"a": 1}),
        ({Colour.RED: OldColour.RED}, {"red": "red"}),
        (datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC), "2025-01-02T03:04:05.000000Z"),
        (datetime(2025, 1, 2, 3, 4, 5, 6, tzinfo=EAST), "2025-01-01T21:34:05.000006Z"),
        (datetime(2025, 1, 2, 3, 4, 5), "2025-01-02T03:04:05.000000"),
        (date(2025, 1, 2), "2025-01-02"),
        (time(3, 4, 5), "03:04:05.000000"),
        (time(3, 4, 5, tzinfo=EAST), "21:34:05.000000Z"),
        (2**53 - 1, 2**53 - 1),
        (2**53, "9007199254740992"),
        (-(2**63), "-9223372036854775808"),
        (1e300, 1e300),
    ],
)
def test_values_of_python_become_values_of_json(value: object, expected: JsonValue) -> None:
    result = normalize(value)

    assert result == expected
    assert encode(result) == encode(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("12"), 12),
        (Decimal("12.00"), 12),
        (Decimal("-0"), 0),
        (Decimal("0.1"), 0.1),
        (Decimal("1.10"), 1.1),
        (Decimal("9007199254740991"), 9007199254740991),
        (Decimal("9007199254740992"), "9007199254740992"),
        (Decimal("0.12345678901234567890"), "0.12345678901234567890"),
        (Decimal("1E+999999"), "1E+999999"),
        (Decimal("1E-999999"), "1E-999999"),
    ],
)
def test_a_decimal_becomes_a_number_only_if_no_digit_is_lost(value: Decimal, expected: JsonValue) -> None:
    with localcontext() as context:
        context.prec = 3  # what a program sets for its own arithmetic must not matter
        result = normalize(value)

    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [float("nan")]}, "/a/0"),
        ({"a": Decimal("NaN")}, "/a"),
        ({"a": Decimal("sNaN")}, "/a"),
        ([float("-inf")], "/0"),
        ([Decimal("Infinity")], "/0"),
        ({"a": {1, 2}}, "/a"),
        ({"a": frozenset()}, "/a"),
        ({"a": b"raw"}, "/a"),
        ({"a": bytearray(b"raw")}, "/a"),
        ({"a": Custom("x")}, "/a"),
        ({"a": timedelta(1)}, "/a"),
        ({"a": "\udfff"}, "/a"),
        ({"a\udfff": 1}, "/a\\udfff"),
        ({"a": {1: "x"}}, "/a/1"),
        ({"a": {True: "x"}}, "/a/True"),
        ({"a": {None: "x"}}, "/a/?"),
        ({"a": {(1, 2): "x"}}, "/a/?"),
        ({"a": 10**5000}, "/a"),
        ({10**5000: "a"}, "/?"),
        ([datetime.min.replace(tzinfo=EAST)], "/0"),
        ((x for x in "generator"), ""),
    ],
)
def test_what_has_no_single_reading_is_refused_with_its_place(value: object, path: str) -> None:
    with pytest.raises(NotCanonical) as refusal:
        normalize(value)

    assert refusal.value.path == path


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(NotCanonical, match=f"more than {MAX_DEPTH} levels"):
        normalize(circle)


def test_the_result_shares_nothing_with_the_value() -> None:
    value: dict[str, list[int]] = {"rows": [1]}
    result = normalize(value)
    value["rows"].append(2)

    assert result == {"rows": [1]}


MOMENTS = st.datetimes(timezones=st.none() | st.timezones()) | st.dates() | st.times()
NUMBERS = st.integers() | st.floats() | st.decimals()
ANYTHING: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | NUMBERS | MOMENTS | st.text() | st.binary() | st.uuids(),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers() | st.none(), inner)
    ),
    max_leaves=12,
)


@settings(deadline=None, derandomize=True, max_examples=600)
@given(ANYTHING)
def test_whatever_a_program_returns_is_refused_or_survives_as_it_was_normalized(value: object) -> None:
    try:
        result = normalize(value)
    except NotCanonical:
        return
    assert decode(encode(result)) == result
    assert normalize(result) == result
