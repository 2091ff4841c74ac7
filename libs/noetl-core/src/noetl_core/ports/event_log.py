"""The canonical log as its users see it: append with guards, read by version, see which heads moved."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from noetl_core.append import Appended, AppendRequest
from noetl_core.envelope import StoredEvent
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose data an operation is about."""

    tenant_id: str
    organization_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Consecutive events of one execution, and where its head stood when they were read."""

    events: tuple[StoredEvent, ...]
    head_version: int
    terminal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedHead:
    """Where a stream stands, for owners that look for what the bus did not deliver."""

    execution_id: int
    tenant_id: str
    organization_id: str
    shard: int
    version: int
    terminal: bool
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPage:
    """Heads in the order of (updated_at, execution_id)."""

    heads: tuple[MovedHead, ...]
    now: datetime
    more: bool


class EventLog(Protocol):
    """The one write path, and its reads."""

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        """Append all of the request or nothing; raises the guard that refused it."""
        ...

    async def read(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        from_version: int = 1,
        to_version: int = 0,
        limit: int = 500,
    ) -> EventPage:
        """Events of a version range, at most `limit`; `to_version` 0 means the head; no scope means any tenant's."""
        ...

    async def moved_heads(
        self,
        shards: Sequence[int],
        *,
        moved_since: datetime | None,
        after: tuple[datetime, int] | None,
        open_only: bool,
        limit: int,
    ) -> HeadPage:
        """Heads of the shards that moved at or after a time, paged by (updated_at, execution_id)."""
        ...
