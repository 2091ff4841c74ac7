"""Projections as their only writer sees them: rows that go forward only, and how far each shard has come."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from noetl_core.fold import State
from noetl_core.ports.deadlines import LateExecution, LatePlace
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import LivePage, RowPage, RowPlace
from noetl_core.ports.projections import ExecutionPage, ExecutionView, SilentCommand
from noetl_core.ports.quiet import QuietExecution
from noetl_core.surfaces.shapes import Row, Surface


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedExecution:
    """What is to be stored of one execution: its state, and the rows of all that has changed in it."""

    state: State
    rows: Mapping[Surface, Mapping[str, Row]]
    """By surface and key, each whole; the execution's own row is made of its state."""
    shard: int
    epoch: int
    base_version: int
    """Version of the stored row that this continues; 0 when it was folded from the first event."""
    upcasters: str
    """Digest of the registry by which old events were read on the way."""
    replaces: int = 0
    """Version of the stored row that this takes the place of, with all rows of the execution; 0 if it replaces none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProjection:
    """What is stored of one execution; the state is None when another release wrote it in another form."""

    state: State | None
    stream_version: int
    epoch: int
    upcasters: str = ""
    """Digest of the registry that it was folded with; empty if whoever wrote it does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a row was not taken: what is stored is as new, a later owner's, or another registry's. Version 0: none is."""

    stream_version: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Outcome of a write; what is not refused is stored, all in one transaction."""

    projected_at: datetime
    refused: Mapping[int, Refusal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCheckpoint:
    """How far a shard has come; every head that moved before `caught_up_to` is in the rows."""

    shard: int
    last_event_id: int | None = None
    projected_at: datetime | None = None
    lag_seconds: float | None = None
    caught_up_to: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """All rows of an execution include every event up to this version, and were committed before this time."""

    execution_id: int
    shard: int
    version: int
    last_event_id: int
    committed_at: datetime


SilentPlace = tuple[datetime, int, str]
"""Where a listing of silent commands goes on: (lease_until, execution_id, command_id)."""


class ProjectionStore(Protocol):
    """Loads and writes projections, and answers what can be answered by looking."""

    async def load(self, execution_ids: Collection[int]) -> Mapping[int, StoredProjection]:
        """What is stored of these executions; those without a row are left out."""
        ...

    async def versions(self, execution_ids: Collection[int]) -> Mapping[int, int]:
        """Versions that the rows of these executions include; those without a row are left out."""
        ...

    async def write(self, executions: Sequence[ProjectedExecution]) -> Written:
        """Store what is newer and not of a deposed owner, each execution with its commands or not at all.

        A row that continues another one is refused when that one is gone, since its commands would be incomplete; and
        when that one was folded with another registry, since half of its rows would be read otherwise than the rest.
        Only one that replaces it is taken then: all rows of the execution go in the same transaction. Its version may
        be an earlier one on the way of several writes `together`, the last of which is beyond it.
        """
        ...

    def together(self) -> AbstractAsyncContextManager[ProjectionStore]:
        """A store of which others see everything at once in the end, or nothing if the block raises."""
        ...

    async def find_objects(self, keys: Mapping[int, Collection[str]]) -> Mapping[int, Mapping[str, Row]]:
        """Rows of business objects by execution and key; those that are not there are left out."""
        ...

    async def list_rows(
        self, scope: Scope | None, execution_ids: Collection[int], *, after: RowPlace | None = None, limit: int
    ) -> RowPage:
        """Rows of all surfaces as they are stored, of one moment; what is not of this scope is left out."""
        ...

    async def list_live(self, scope: Scope | None, *, after: int = 0, limit: int) -> LivePage:
        """Executions that have a row, with ids above one; no scope means any tenant's."""
        ...

    async def checkpoints(self, shards: Collection[int]) -> Mapping[int, ShardCheckpoint]:
        """How far these shards have come; those without a checkpoint are left out."""
        ...

    async def write_checkpoints(self, checkpoints: Sequence[ShardCheckpoint]) -> None:
        """Note how far shards have come; `caught_up_to` never goes back, and None leaves it as it is."""
        ...

    async def write_barriers(self, execution_ids: Collection[int]) -> list[Barrier]:
        """Close what is committed of these executions; the rows say how far that is. Those at a barrier are left out.

        A barrier takes the place of the one before it, unless that one was told in the log.
        """
        ...

    async def keep_barrier(self, execution_id: int, version: int) -> None:
        """The log tells of it, or is about to: it stays."""
        ...

    async def barriers(self, execution_id: int) -> list[Barrier]:
        """Of one execution, oldest first."""
        ...

    async def find_execution(self, scope: Scope | None, execution_id: int) -> ExecutionView | None:
        """The row of one execution, None if there is none for this scope; no scope means any tenant's."""
        ...

    async def list_executions(
        self,
        scope: Scope,
        *,
        status: str = "",
        path: str = "",
        parent_execution_id: int | None = None,
        page_size: int = 50,
        page_token: str = "",
    ) -> ExecutionPage:
        """Executions of a tenant and organization, newest first, without their state."""
        ...

    async def silent_commands(self, *, limit: int, after: SilentPlace | None = None) -> tuple[SilentCommand, ...]:
        """Claimed commands of open executions whose lease is over by the database's clock, longest silent first."""
        ...

    async def quiet_executions(self, *, quiet_seconds: float, limit: int, after: int = 0) -> tuple[QuietExecution, ...]:
        """Executions that have not ended, without an event for so long, oldest first; `after` is an id."""
        ...

    async def passed_deadlines(self, *, limit: int, after: LatePlace | None = None) -> tuple[LateExecution, ...]:
        """Executions whose next open deadline has passed by the database's clock, longest overdue first."""
        ...
