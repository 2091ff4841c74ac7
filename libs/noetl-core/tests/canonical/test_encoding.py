"""Canonical bytes: the vectors of RFC 8785, and equality with its reference package for every value."""

import hashlib
import json
import struct
from collections import OrderedDict
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st
from noetl_core.canonical import MAX_DEPTH, MAX_SAFE_INTEGER, JsonValue, decode, encode, sha256_hex
from noetl_core.errors import NotCanonical

thorough = settings(deadline=None, derandomize=True, max_examples=600)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
CONTROL_TEXT = st.text(st.characters(max_codepoint=0x80))
# Around these code points UTF-16 order and code-point order part ways.
BORDER_TEXT = st.text(st.sampled_from("a\u007f\u0080\ud7ff\ue000\ufb33\uffff\U00010000\U0001f600\U0010ffff"))
NAMES = TEXT | CONTROL_TEXT | BORDER_TEXT
SAFE_INTEGERS = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
SHORT_DECIMALS = st.builds(
    lambda digits, exponent: float(f"{digits}e{exponent}"), st.integers(-9999, 9999), st.integers(-30, 30)
)
SCALARS = st.none() | st.booleans() | SAFE_INTEGERS | DOUBLES | SHORT_DECIMALS | NAMES
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=25
)
PLAIN_VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | SAFE_INTEGERS | st.text(st.characters(max_codepoint=0x17F)),
    lambda inner: st.lists(inner) | st.dictionaries(CONTROL_TEXT, inner),
    max_leaves=40,
)

# RFC 8785, appendix B: the bits of a double, and how it is spelled.
APPENDIX_B = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


class Status(StrEnum):
    DONE = "done"


class Level(IntEnum):
    HIGH = 3


def double(bits: str) -> float:
    number: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return number


@pytest.mark.parametrize(("bits", "spelling"), APPENDIX_B.items())
def test_doubles_are_spelled_as_in_appendix_b(bits: str, spelling: str) -> None:
    assert encode(double(bits)) == spelling.encode()
    assert encode([double(bits)]) == f"[{spelling}]".encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_the_doubles_that_appendix_b_calls_errors_are_refused(bits: str) -> None:
    with pytest.raises(NotCanonical):
        encode(double(bits))


def test_the_whole_example_of_the_rfc_is_reproduced() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '\u20ac$\u000f\nA\'B"\\\\"/',
        "literals": [None, True, False],
    }
    assert (
        encode(value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_members_are_sorted_by_utf16_units_as_in_the_example_of_the_rfc() -> None:
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert [*as_object(decode(encode(value))).values()] == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@thorough
@given(VALUES)
@example({"\uffff": 1, "\U00010000": 2})
@example([1e16, 1e-4, 9.5e-5, 123456789012345680.0, 0.1, -0.0, 3.0])
@example({"a": {"b": [{}, [], "", 0]}})
def test_every_value_is_encoded_as_the_reference_package_does(value: JsonValue) -> None:
    assert encode(value) == rfc8785.dumps(value)


@thorough
@given(PLAIN_VALUES)
def test_values_for_the_c_encoder_are_encoded_as_the_reference_package_does(value: JsonValue) -> None:
    assert encode(value) == rfc8785.dumps(value)


@thorough
@given(VALUES)
def test_what_is_encoded_decodes_to_an_equal_value(value: JsonValue) -> None:
    data = encode(value)
    assert decode(data) == value
    assert encode(decode(data)) == data


def test_the_order_of_insertion_leaves_no_trace() -> None:
    assert encode({"b": 1, "a": {"d": 2, "c": 3}}) == encode({"a": {"c": 3, "d": 2}, "b": 1})


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ((1, ("a",)), b'[1,["a"]]'),
        ({"status": Status.DONE}, b'{"status":"done"}'),
        ({"level": Level.HIGH}, b'{"level":3}'),
        ({Status.DONE: True}, b'{"done":true}'),
        (OrderedDict(b=1, a=2), b'{"a":2,"b":1}'),
        (MappingProxyType({"a": MappingProxyType({})}), b'{"a":{}}'),
        ("alone", b'"alone"'),
        (None, b"null"),
    ],
)
def test_kin_of_the_json_types_are_encoded_as_what_they_are(value: object, data: bytes) -> None:
    assert encode(value) == data


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), ""),
        ({"a": [1, float("inf")]}, "/a/1"),
        ({"a": MAX_SAFE_INTEGER + 1}, "/a"),
        ([-MAX_SAFE_INTEGER - 1], "/0"),
        ({"a": {"b": "\ud800"}}, "/a/b"),
        ({"a": {"b\ud800": 1}}, "/a/b\\ud800"),
        ({"a": {1: "one"}}, "/a/1"),
        ({"a": {None: "none"}}, "/a/?"),
        ({"a": {True: "yes"}}, "/a/True"),
        ({"a": {"x/y~z": {1, 2}}}, "/a/x~1y~0z"),
        ({"a": b"bytes"}, "/a"),
        ([object()], "/0"),
    ],
)
def test_what_json_cannot_carry_is_refused_with_its_place(value: object, path: str) -> None:
    with pytest.raises(NotCanonical) as refusal:
        encode(value)

    assert refusal.value.path == path
    assert refusal.value.code == "value.not_canonical"


def test_the_refusal_does_not_repeat_the_value() -> None:
    with pytest.raises(NotCanonical) as refusal:
        encode({"token": b"s3cret"})

    assert "s3cret" not in refusal.value.message


def test_nesting_is_bounded_by_a_fixed_depth() -> None:
    assert encode(nested(MAX_DEPTH)) == b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    with pytest.raises(NotCanonical, match="nesting"):
        encode(nested(MAX_DEPTH + 1))


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: dict[str, Any] = {"a": 1}
    circle["self"] = [circle, circle]
    with pytest.raises(NotCanonical, match="nesting"):
        encode(circle)


def test_the_checksum_is_sha256_in_lowercase_hex() -> None:
    assert sha256_hex(b"noetl") == hashlib.sha256(b"noetl").hexdigest()


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def as_object(value: JsonValue) -> dict[str, JsonValue]:
    assert isinstance(value, dict)
    return value


def test_an_object_that_stands_in_several_places_is_spelt_in_each_of_them() -> None:
    shared: dict[str, object] = {"b": [1, {"c": None}], "a": "x"}
    value = {"results": {"one": shared, "two": shared}, "one": shared, "list": [shared, shared]}

    assert encode(value) == encode(json.loads(json.dumps(value)))


def test_what_is_near_the_limit_at_one_place_is_too_deep_at_another() -> None:
    shared: object = "x"
    for _ in range(MAX_DEPTH - 1):
        shared = {"a": shared}

    assert encode({"a": shared})
    with pytest.raises(NotCanonical):
        encode({"a": shared, "b": {"c": shared}})
    with pytest.raises(NotCanonical):
        encode({"a": {"b": shared}, "c": shared})
