"""Tables as bytes: the form in which tabular results are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Protocol

MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"


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


class Tables(Protocol):
    """Turns rows into bytes and back."""

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> EncodedTable:
        """Raises `ColumnRefused` where reading them back would give something else."""
        ...

    def decode(self, data: bytes, *, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """The rows of a range; raises `Corrupt` when the bytes are no table."""
        ...

    def facts(self, source: BinaryIO) -> TableFacts:
        """What is in the bytes, without making rows of them."""
        ...
