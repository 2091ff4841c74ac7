"""Strict reading: what two readers could understand differently is refused, with its place."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.canonical import JsonValue, decode, encode
from noetl_core.errors import NotCanonical

thorough = settings(deadline=None, derandomize=True, max_examples=400)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b' {"a" : [1, 2.5, "x", null, true]} ', {"a": [1, 2.5, "x", None, True]}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b"9007199254740991", 9007199254740991),
        (b"-9007199254740991", -9007199254740991),
        (b"1e2", 100.0),
        ('"€"'.encode(), "€"),
    ],
)
def test_json_that_is_not_canonical_is_read_too(data: bytes, value: JsonValue) -> None:
    assert decode(data) == value


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b'{"a": 1, "a": 1}', ""),
        (b'{"a": [{}, {"b": 1, "c": 2, "b": 3}]}', "/a/1"),
        (b'{"a": NaN}', "/a"),
        (b"[1, -Infinity]", "/1"),
        (b"[1e999]", "/0"),
        (b'{"a": 9007199254740993}', "/a"),
        (b'{"a": 12345678901234567890}', "/a"),
        (b'{"a": 12345678901234567890, "b": x}', ""),
        (b'{"a": ' + b"9" * 5000 + b"}", "/a"),
        (b'{"a": "\\ud800"}', "/a"),
        (b'{"a": "\\uDC00x"}', "/a"),
        (b'{"\\ud800": 1}', "/\\ud800"),
        (b'{"a": "\xff"}', "byte 7"),
        (b'{"a": "\xed\xa0\x80"}', "byte 7"),
        (b'{"a": }', "line 1 column 7"),
        (b'{"a": 1} x', "line 1 column 10"),
        (b'"line\nbreak"', "line 1 column 6"),
        (b"\xef\xbb\xbf{}", "line 1 column 1"),
        ("{}".encode("utf-16"), "byte 0"),
        (b"", "line 1 column 1"),
    ],
)
def test_ambiguous_or_broken_bytes_are_refused_with_their_place(data: bytes, path: str) -> None:
    with pytest.raises(NotCanonical) as refusal:
        decode(data)

    assert refusal.value.path == path


def test_nesting_that_would_exhaust_the_stack_is_refused() -> None:
    with pytest.raises(NotCanonical, match="nesting"):
        decode(b"[" * 100_000 + b"]" * 100_000)


def test_large_doubles_come_back_as_they_were_written() -> None:
    numbers: list[JsonValue] = [1e20, 2.0**53, -(2.0**64), 123456789012345680000.0]
    assert encode(decode(encode(numbers))) == encode(numbers)


@thorough
@given(st.binary() | st.text().map(lambda text: text.encode(errors="surrogatepass")))
def test_arbitrary_bytes_are_read_or_refused_but_never_break_the_reader(data: bytes) -> None:
    try:
        value = decode(data)
    except NotCanonical:
        return
    assert decode(encode(value)) == value


@thorough
@given(st.integers())
def test_an_integer_is_read_exactly_or_refused(number: int) -> None:
    try:
        value = decode(str(number).encode())
    except NotCanonical:
        return
    assert encode(value) == str(number).encode()


@thorough
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-9, 9), min_size=1))
def test_a_key_that_occurs_twice_is_found_wherever_it_stands(members: dict[str, int]) -> None:
    text = json.dumps(members)
    name = json.dumps(next(iter(members)))
    with pytest.raises(NotCanonical, match="duplicate"):
        decode(f"[0, {text[:-1]}, {name}: 0}}]".encode())
