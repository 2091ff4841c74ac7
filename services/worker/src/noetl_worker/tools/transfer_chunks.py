"""Rows on their way: chunks of bounded number, the next one read while the last is written, never three at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from noetl_worker.tools.call_failed import misconfigured

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some rows with the names of the columns that they are meant for; values are those of Python."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]


class Mapped:
    """`mapping` of a target: which of its columns takes which field. Without one, names stay as they are."""

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self._mapping = dict(mapping)

    def of_rows(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Chunk:
        """From a database: fields are the columns of the query."""
        if not self._mapping:
            return Chunk(columns=tuple(columns), rows=rows)
        places = {name: index for index, name in enumerate(columns)}
        unknown = [field for field in self._mapping.values() if field not in places]
        if unknown:
            raise misconfigured(f"the query has no column {unknown[0]!r}, only {', '.join(columns)}")
        chosen = [places[field] for field in self._mapping.values()]
        return Chunk(columns=tuple(self._mapping), rows=[[row[place] for place in chosen] for row in rows])

    def of_items(self, items: Sequence[object]) -> Chunk:
        """From JSON: fields are paths with dots; what an item lacks is null."""
        for item in items:
            if not isinstance(item, Mapping):
                raise misconfigured(f"the source gives a {type(item).__name__} where a row, a map, is needed")
        paths = self._mapping or {str(name): "" for item in items if isinstance(item, Mapping) for name in item}
        if not paths:
            raise misconfigured("the rows of the source have no fields")
        rows = [[_at(item, path) if path else _field(item, column) for column, path in paths.items()] for item in items]
        return Chunk(columns=tuple(paths), rows=rows)


async def two_at_a_time(chunks: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The same chunks: while one is used the next is made, and the one after that only when the first is done with."""
    ready: asyncio.Queue[tuple[T, None] | tuple[None, BaseException | None]] = asyncio.Queue()
    places = asyncio.Semaphore(2)

    async def make() -> None:
        try:
            async with aclosing(chunks) as source:
                while True:
                    await places.acquire()
                    try:
                        made = await anext(source)
                    except StopAsyncIteration:
                        break
                    ready.put_nowait((made, None))
                    del made
            ready.put_nowait((None, None))
        except Exception as exc:
            ready.put_nowait((None, exc))

    maker = asyncio.create_task(make())
    try:
        while True:
            chunk, error = await ready.get()
            if error is not None:
                raise error
            if chunk is None:
                return
            yield chunk
            del chunk
            places.release()
    finally:
        maker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await maker


def _at(item: object, path: str) -> object:
    """A field by its name or, if there is none of this name, by the way to it."""
    if isinstance(item, Mapping) and path in item:
        return item[path]
    for part in path.split("."):
        if not isinstance(item, Mapping):
            return None
        item = item.get(part)
    return item


def _field(item: object, name: str) -> object:
    return item.get(name) if isinstance(item, Mapping) else None
