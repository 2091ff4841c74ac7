"""Tables as bytes: the form in which tabular results are stored (ADR 0027)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Protocol

from noetl_core.canonical import JsonObject, JsonValue

MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"

_BEGINNING: Final = b"\xff\xff\xff\xff"
"""Of every Arrow stream, and of no UTF-8 text."""


def is_table(data: bytes | memoryview) -> bool:
    """Whether bytes are a table; references made from a digest alone do not know what they lead to."""
    return bytes(data[: len(_BEGINNING)]) == _BEGINNING


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What is known of a table without its rows."""

    columns: tuple[str, ...]
    row_count: int
    schema_digest: str
    """SHA-256 over names and types of the columns: two tables with the same one can be read as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTable:
    """The bytes of a table, and what is known of it."""

    data: bytes
    facts: TableFacts
    header_bytes: int
    """How many bytes come before the first batch."""
    batches: tuple[tuple[int, int], ...]
    """Rows and bytes of each batch, one after the other: what a reader of a few rows needs to know."""
    plain_bytes: int
    """How many bytes there would be without compression, so that a setting does not decide what is large."""


class TakeRows(Protocol):
    """The rows of a table one after the other; those that nobody has taken yet are bytes."""

    def take(self, count: int) -> Sequence[JsonValue]:
        """The next rows, fewer only where the table ends; raises `Corrupt` when the bytes go on as no table."""
        ...


class ReadTables(Protocol):
    """What readers of results need."""

    def decode_json(self, data: bytes | memoryview, *, start: int = 0, stop: int | None = None) -> list[JsonObject]:
        """The rows of a range as JSON; typed values of other writers as SQL tools tell them."""
        ...

    def rows_json(self, data: bytes | memoryview) -> TakeRows:
        """The same rows for who wants few of them at a time; raises `Corrupt` when the bytes are no table."""
        ...

    def note(self, data: bytes | memoryview) -> bytes:
        """What was kept with the columns; empty if there is nothing. It needs no more than the header."""
        ...


class Tables(ReadTables, Protocol):
    """Turns rows into bytes and back: typed values as they are, or JSON values as canonical JSON has them."""

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> EncodedTable:
        """Raises `ColumnRefused` where reading them back would give something else."""
        ...

    def decode(self, data: bytes | memoryview, *, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """The rows of a range; raises `Corrupt` when the bytes are no table."""
        ...

    def encode_json(self, rows: Sequence[Mapping[str, JsonValue]], *, note: bytes = b"") -> EncodedTable:
        """Rows of JSON values, and a note that is kept with the columns.

        Numbers are of one kind, as in JSON. Raises `ColumnRefused` where reading the rows back would give something
        else than their canonical JSON does, or where they have none.
        """
        ...

    def facts(self, source: BinaryIO) -> TableFacts:
        """What is in the bytes, without making rows of them."""
        ...
