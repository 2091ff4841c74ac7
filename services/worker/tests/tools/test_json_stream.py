"""JSON as it arrives: the same items whatever the pieces, and never all of them at once."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_core.canonical import JsonValue
from noetl_worker.tools.call_failed import CallFailed
from noetl_worker.tools.json_stream import JsonItems

VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(st.sampled_from(["id", "name", "tags"]), VALUES, min_size=1), max_size=6)


async def pieces_of(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def items(data: bytes, *, size: int = 7, path: str = "", max_bytes: int = 1_000_000) -> list[JsonValue]:
    async def read() -> list[JsonValue]:
        return [item async for item in JsonItems(pieces_of(data, size), max_bytes=max_bytes, path=path)]

    return asyncio.run(read())


@given(st.lists(VALUES, max_size=6), st.integers(1, 20), st.sampled_from([None, 2]), st.booleans())
def test_a_list_gives_its_items_however_it_is_cut(
    values: list[JsonValue], size: int, indent: int | None, ascii_only: bool
) -> None:
    document = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode(errors="replace")

    assert items(document, size=size) == json.loads(document)


@given(ROWS, st.integers(1, 20))
def test_lines_give_a_document_each(rows: list[JsonValue], size: int) -> None:
    lines = "\n".join(json.dumps(row) for row in rows).encode()

    assert items(lines, size=size) == rows


@pytest.mark.parametrize(
    ("document", "path", "expected"),
    [
        ({"data": [1, 2]}, "", [1, 2]),
        ({"count": 2, "results": [1, 2]}, "", [1, 2]),
        ({"id": 1}, "", [{"id": 1}]),
        ({"page": {"orders": [1, 2]}}, "page.orders", [1, 2]),
        ({"page": {}}, "page.orders", []),
        ([1, 2], "page.orders", [1, 2]),
        ({"one": {"id": 1}}, "one", [{"id": 1}]),
    ],
)
def test_a_map_has_its_list_somewhere(document: JsonValue, path: str, expected: list[JsonValue]) -> None:
    assert items(json.dumps(document).encode(), path=path) == expected


def test_nothing_is_no_items() -> None:
    assert items(b"") == items(b" \n ") == items(b"[]") == items(b"\xef\xbb\xbf[ ]") == []


@pytest.mark.parametrize("broken", [b"[1, 2", b"[1 2]", b"<html>", b"[1,]", b'{"a": ', b"\xff\xfe", b"[" * 50_000])
def test_what_is_no_json_is_an_outcome(broken: bytes) -> None:
    with pytest.raises(CallFailed) as refusal:
        items(broken)

    assert refusal.value.outcome.error is not None
    assert refusal.value.outcome.error.code == "SOURCE_NOT_JSON"


def test_one_value_may_not_be_larger_than_a_response() -> None:
    with pytest.raises(CallFailed) as refusal:
        items(b'["' + b"x" * 10_000 + b'"]', size=512, max_bytes=4096)

    assert refusal.value.outcome.error is not None
    assert refusal.value.outcome.error.code == "RESPONSE_TOO_LARGE"


async def test_an_item_is_given_before_the_next_has_arrived() -> None:
    sent: list[int] = []

    async def slowly() -> AsyncIterator[bytes]:
        yield b"["
        for number in range(100):
            sent.append(number)
            yield json.dumps({"number": number, "text": "x" * 5000}).encode() + b","
        yield b"null]"

    seen: list[tuple[JsonValue, int]] = []
    async for item in JsonItems(slowly(), max_bytes=100_000):
        if isinstance(item, dict):
            seen.append((item["number"], len(sent)))

    assert len(seen) == 100
    assert all(isinstance(number, int) and arrived - number <= 3 for number, arrived in seen)


def test_a_large_value_is_looked_at_few_times() -> None:
    value = "x" * 2_000_000

    assert items(json.dumps([value]).encode(), size=1000, max_bytes=10_000_000) == [value]
