"""Rows of projections as they are stored, of several executions at a time: what proofs compare with the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from noetl_core.canonical import decode
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.ids import parse_id
from noetl_core.ports.event_log import Scope
from noetl_core.surfaces.shapes import Row, Surface


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlace:
    """Behind which row a listing goes on; rows come by surface, execution and key."""

    surface: Surface
    execution_id: int
    key: str

    def to_token(self) -> str:
        """As one text."""
        return f"{self.surface}/{self.execution_id}/{self.key}"

    @classmethod
    def from_token(cls, token: str) -> RowPlace | None:
        """The place that a token names; an empty token is the start."""
        if not token:
            return None
        parts = token.split("/", maxsplit=2)
        if len(parts) != 3 or parts[0] not in set(Surface):
            raise InvalidInput(f"{token!r} is not a page token")
        return cls(surface=Surface(parts[0]), execution_id=parse_id(parts[1], what="page_token"), key=parts[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """One row, whole."""

    execution_id: int
    surface: Surface
    key: str
    data: bytes
    """Canonical JSON: who passes it on need not read it."""

    def row(self) -> Row:
        """What it says; raises `Corrupt` if it is no object."""
        value: Any = decode(self.data)
        if not isinstance(value, dict):
            raise Corrupt(f"the row {self.key} of {self.surface} is not an object")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionColumns:
    """What is stored of an execution beside its row: derived, and what reapers and barriers go by."""

    shard: int
    next_deadline: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPage:
    """Rows of one moment. Whoever reads several pages compares versions: those that moved have other rows by now."""

    versions: Mapping[int, int]
    """Which version the rows of each execution include; executions that nobody has projected are left out."""
    rows: tuple[StoredRow, ...]
    following: RowPlace | None
    """None when this was the last page."""
    upcasters: Mapping[int, str] = field(default_factory=dict)
    """Digest of the registry that the rows of each execution were folded with; where nobody knows, it is left out."""
    columns: Mapping[int, ExecutionColumns] = field(default_factory=dict)
    """Of each execution; a release that does not tell them leaves them out."""
    shard_count: int = 0
    """Of the installation; 0: whoever shows the rows does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveExecution:
    """An execution as its own row names it, or another one where that is gone, whatever the log says of it."""

    execution_id: int
    tenant_id: str
    organization_id: str
    stream_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """Those of some executions that were asked for, by their ids."""

    executions: tuple[LiveExecution, ...]
    following: int | None
    """The last execution that was looked at; None when there are no more."""


class LiveExecutions(Protocol):
    """Lists what has a row: rows are left when the log has lost an execution with everything that named it."""

    async def list_live(self, scope: Scope | None, *, after: int = 0, limit: int = 1000) -> LivePage:
        """Looks at so many executions that have a row of any surface, with ids above one.

        No scope means any tenant's, also of one that the log does not name.
        """
        ...


class LiveRows(Protocol):
    """Shows what is stored and computes nothing."""

    async def list_rows(
        self,
        scope: Scope | None,
        wanted: Mapping[int, int],
        *,
        after: RowPlace | None = None,
        wait_seconds: float = 0.0,
    ) -> RowPage:
        """One page of the rows of these executions, whose values are versions that are to be waited for.

        Versions that do not come in time are no error: the page says which ones there are.
        """
        ...
