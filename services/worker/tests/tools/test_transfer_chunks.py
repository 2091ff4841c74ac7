"""Chunks on their way: in order, with their errors, and never three at once."""

import asyncio
import gc
from collections.abc import AsyncGenerator

import pytest
from noetl_worker.tools.call_failed import CallFailed
from noetl_worker.tools.transfer_chunks import Mapped, two_at_a_time


class Counted:
    """A chunk that knows how many of its kind there are."""

    alive = 0
    most = 0

    def __init__(self, number: int) -> None:
        self.number = number
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        Counted.alive -= 1


async def made(count: int) -> AsyncGenerator[Counted, None]:
    for number in range(count):
        await asyncio.sleep(0)
        yield Counted(number)


async def test_all_come_in_order_and_at_most_two_exist() -> None:
    gc.collect()
    Counted.alive = Counted.most = 0
    numbers = []

    async for chunk in two_at_a_time(made(50)):
        for _ in range(5):
            await asyncio.sleep(0)  # the next one is made meanwhile
        numbers.append(chunk.number)
        del chunk

    assert numbers == list(range(50))
    assert Counted.most == 2


async def test_the_next_is_made_while_one_is_used() -> None:
    asked: list[int] = []
    second = asyncio.Event()

    async def source() -> AsyncGenerator[int, None]:
        for number in range(3):
            asked.append(number)
            if number == 1:
                second.set()
            yield number

    async for chunk in two_at_a_time(source()):
        if chunk == 0:
            await second.wait()

    assert asked == [0, 1, 2]


async def test_an_error_of_the_source_comes_out_after_what_was_before_it() -> None:
    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise LookupError("gone")

    seen = []
    with pytest.raises(LookupError):
        async for chunk in two_at_a_time(source()):
            seen.append(chunk)

    assert seen == [1]


async def test_who_stops_early_closes_the_source() -> None:
    closed = asyncio.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            for number in range(100):
                yield number
        finally:
            closed.set()

    chunks = two_at_a_time(source())
    assert await anext(chunks) == 0
    await chunks.aclose()

    assert closed.is_set()


def test_rows_of_a_query_go_where_the_mapping_says() -> None:
    mapped = Mapped({"order_id": "id", "total": "amount"}).of_rows(("amount", "note", "id"), [(5, "x", 1), (6, "y", 2)])

    assert mapped.columns == ("order_id", "total")
    assert mapped.rows == [[1, 5], [2, 6]]
    assert Mapped({}).of_rows(("a",), [(1,)]).rows == [(1,)]


def test_a_field_that_the_query_lacks_is_refused() -> None:
    with pytest.raises(CallFailed, match="no column 'nope'"):
        Mapped({"a": "nope"}).of_rows(("a",), [])


def test_fields_of_items_are_paths() -> None:
    items: list[object] = [{"id": 1, "who": {"name": "ada"}, "a.b": 2}, {"id": 2}]

    mapped = Mapped({"id": "id", "name": "who.name", "dotted": "a.b"}).of_items(items)

    assert mapped.rows == [[1, "ada", 2], [2, None, None]]


def test_without_a_mapping_items_keep_their_names_and_what_they_lack_is_null() -> None:
    mapped = Mapped({}).of_items([{"a": 1}, {"b": 2}])

    assert mapped.columns == ("a", "b")
    assert mapped.rows == [[1, None], [None, 2]]


def test_an_item_that_is_no_map_is_no_row() -> None:
    with pytest.raises(CallFailed, match="a row, a map, is needed"):
        Mapped({}).of_items([1])
    with pytest.raises(CallFailed, match="no fields"):
        Mapped({}).of_items([{}])
