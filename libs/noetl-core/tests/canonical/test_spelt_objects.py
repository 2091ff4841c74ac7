"""The fast writer is exact where it is used, and objects that keep their bytes are what the strict reader reads."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from noetl_core.canonical import JsonValue, SpeltObject, decode, encode, native, read_canonical, read_spelt
from noetl_core.canonical.encoding import suits, write
from noetl_core.canonical.values import MAX_DEPTH, MAX_SAFE_INTEGER
from noetl_core.errors import NotCanonical

thorough = settings(deadline=None, derandomize=True, max_examples=100)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = TEXT | st.text(st.characters(max_codepoint=0x80)) | st.text(st.sampled_from("a\uffff\U00010000\ue000"))
NUMBERS = (
    st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(1e-5, 1e17)
    | st.builds(lambda digits, exponent: float(f"{digits}e{exponent}"), st.integers(-9999, 9999), st.integers(-7, 19))
)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | NUMBERS | NAMES,
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, VALUES)


def carefully(value: object) -> bytes:
    parts: list[str] = []
    write(value, parts, 0)
    return "".join(parts).encode()


@thorough
@given(OBJECTS)
@example({"n": 0.0001, "m": 9999999999999998.0, "k": 123456789012345.67, "text": '\x00\x1f\x7f\u2028\\"\b\f'})
def test_what_suits_is_spelt_as_the_careful_writer_does_it(value: dict[str, Any]) -> None:
    if suits(value):
        assert native.write(value) == carefully(value)
        assert native.PlainWriter().write(value) == carefully(value)
    assert encode(value) == carefully(value)


@thorough
@given(OBJECTS)
def test_canonical_bytes_are_read_as_the_strict_reader_does_it(value: dict[str, Any]) -> None:
    data = encode(value)

    read = read_spelt(data)

    assert read == read_canonical(data) == decode(data)
    assert encode(read) == data
    if isinstance(read, SpeltObject):
        assert read.spelt == data


def nested(depth: int, inside: str) -> bytes:
    return f'{{"a":{"[" * depth}{inside}{"]" * depth}}}'.encode()


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (nested(3, '{"b":[1,"2",null,true]}'), True),
        (nested(3, "0.5"), True),
        (nested(3, "1e16"), False),
        (nested(3, "1e-7"), False),
        (nested(3, "5.0"), False),
        (nested(MAX_DEPTH - 1, "1"), True),
        (f'{{"a":{MAX_SAFE_INTEGER},"b":-{MAX_SAFE_INTEGER}}}'.encode(), True),
        ('{"\ue000":1,"\U00010000":2}'.encode(), False),
        ('{"\U00010000":2,"\ue000":1}'.encode(), False),
        ('{"\uffff":1}'.encode(), True),
    ],
)
def test_only_what_the_careful_writer_spells_the_same_keeps_its_bytes(data: bytes, *, kept: bool) -> None:
    read = read_spelt(data)

    assert isinstance(read, SpeltObject) == kept
    assert read == read_canonical(data) == decode(data)
    assert not kept or carefully(read) == data


def test_what_is_nested_too_deep_to_be_written_again_is_not_kept() -> None:
    assert not isinstance(read_spelt(nested(MAX_DEPTH, "1")), SpeltObject)


@pytest.mark.parametrize(
    "data",
    [
        b'{"b":1,"a":2}',
        b'{ "a":1}',
        b'{"a":1.0}',
        b'{"a":1e2}',
        b'{"a":-0}',
        b'{"a":"\\u0061"}',
        b'{"a":"\\/"}',
        b"[1]",
    ],
)
def test_other_spellings_are_read_but_not_kept(data: bytes) -> None:
    read = read_spelt(data)

    assert not isinstance(read, SpeltObject)
    assert read == read_canonical(data) == decode(data)


@pytest.mark.parametrize(
    "data", [b'{"a":1,"a":1}', b'{"a":NaN}', b'{"a":9007199254740993}', b'{"a":"\\ud800"}', b'{"a":"\xff"}', b"{", b""]
)
def test_what_is_ambiguous_is_refused(data: bytes) -> None:
    for read in (read_spelt, read_canonical):
        with pytest.raises(NotCanonical):
            read(data)


def test_an_object_that_keeps_its_bytes_cannot_be_changed() -> None:
    read = read_spelt(b'{"a":1}')
    assert isinstance(read, SpeltObject)

    changes: list[Callable[[], object]] = [
        lambda: read.update({"b": 2}),
        lambda: read.__setitem__("b", 2),
        lambda: read.pop("a"),
        lambda: read.setdefault("b", 2),
        read.clear,
    ]
    for change in changes:
        with pytest.raises(TypeError, match="cannot be changed"):
            change()
    assert read == {"a": 1}
    assert copy.deepcopy(read) == read
    again = pickle.loads(pickle.dumps(read))  # noqa: S301 - our own bytes
    assert (again, again.spelt) == ({"a": 1}, b'{"a":1}')


@thorough
@given(TEXT)
def test_a_text_is_spelt_alike_with_and_without_the_fast_writer(text: str) -> None:
    assert native.text(text) == native.PlainWriter().write(text) == carefully(text)


def test_a_lone_surrogate_and_a_large_integer_are_nothing_to_spell() -> None:
    for write_text in (native.text, native.PlainWriter().write):
        with pytest.raises(TypeError):
            write_text("\ud800")
    with pytest.raises(TypeError):
        native.write({"n": MAX_SAFE_INTEGER + 1})
