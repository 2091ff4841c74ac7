"""Items of a JSON document as it arrives: a list, one document a line, or a map that has the list somewhere."""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator, Mapping

from noetl_core.canonical import JsonValue

from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import CallFailed, failed

LIST_KEYS = ("data", "items", "results", "rows", "records")
"""Where the list of a map is looked for when nobody says where it is."""

_SPACE = " \t\r\n"
_DECODER = json.JSONDecoder()
_MIN_TEXT = 4096


class JsonItems:
    """Reads items from pieces of bytes; a list or lines are never in memory as a whole."""

    def __init__(self, pieces: AsyncIterator[bytes], *, max_bytes: int, path: str = "") -> None:
        self._pieces = pieces
        self._max_bytes = max_bytes
        self._path = path
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="strict")
        self._text = ""
        self._position = 0
        self._is_over = False

    async def __aiter__(self) -> AsyncIterator[JsonValue]:
        first = await self._next_character()
        if first == "[" and not self._path:
            self._position += 1
            async for item in self._of_list():
                yield item
        elif first == "{" and not self._path:
            document = await self._value()
            if await self._next_character() == "":
                for item in _list_in(document, self._path):
                    yield item
            else:  # another one follows: these are lines
                yield document
                while await self._next_character():
                    yield await self._value()
        elif first:
            for item in _list_in(await self._value(), self._path):
                yield item

    async def _of_list(self) -> AsyncIterator[JsonValue]:
        if await self._next_character() == "]":
            return
        while True:
            yield await self._value()
            match await self._next_character():
                case ",":
                    self._position += 1
                case "]":
                    return
                case _:
                    raise _broken("a list is not continued as lists are")

    async def _value(self) -> JsonValue:
        """The next value, as soon as all of it is there and what follows shows that it is over."""
        await self._next_character()
        enough = _MIN_TEXT
        while True:
            if self._is_over or len(self._text) - self._position >= enough:
                try:
                    value: JsonValue
                    value, end = _DECODER.raw_decode(self._text, self._position)
                except ValueError as exc:
                    if self._is_over:
                        raise _broken(str(exc)) from exc
                except RecursionError as exc:
                    raise _broken("it is nested too deeply") from exc
                else:
                    if self._is_over or end < len(self._text):
                        self._position = end
                        return value
                # Not again before there is twice as much: a large value is looked at few times.
                enough = 2 * (len(self._text) - self._position)
            await self._read()

    async def _next_character(self) -> str:
        """The next one that is no space, without taking it; nothing at the end."""
        while True:
            while self._position < len(self._text):
                character = self._text[self._position]
                if character not in _SPACE:
                    return character
                self._position += 1
            if self._is_over:
                return ""
            await self._read()

    async def _read(self) -> None:
        piece = await anext(self._pieces, None)
        try:
            more = self._decode.decode(piece or b"", final=piece is None)
        except UnicodeDecodeError as exc:
            raise _broken("it is not UTF-8") from exc
        self._is_over = piece is None
        self._text = self._text[self._position :] + more
        self._position = 0
        if len(self._text) > self._max_bytes:
            message = f"a value of the response has more than {self._max_bytes} bytes"
            raise failed(ErrorKind.STORAGE_QUOTA, "RESPONSE_TOO_LARGE", message)


def _list_in(document: JsonValue, path: str) -> list[JsonValue]:
    if path:
        for part in path.split("."):
            if isinstance(document, list):
                break  # the list is where it is, whatever the way to it was thought to be
            document = document.get(part) if isinstance(document, Mapping) else None
    elif isinstance(document, Mapping):
        document = next((document[key] for key in LIST_KEYS if isinstance(document.get(key), list)), document)
    if document is None:
        return []
    return document if isinstance(document, list) else [document]


def _broken(reason: str) -> CallFailed:
    return failed(ErrorKind.PARSE, "SOURCE_NOT_JSON", f"the response cannot be read as rows: {reason}")
