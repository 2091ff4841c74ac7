"""The streams of a tenant as the log knows them, for those who have to see every one: exports and proofs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from noetl_core.ports.event_log import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHead:
    """Where a stream ends; its checksum proves everything before."""

    execution_id: int
    tenant_id: str
    organization_id: str
    version: int
    checksum: str
    terminal: bool
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPage:
    """Heads in the order of execution ids, and the database's clock when they were read."""

    heads: tuple[StreamHead, ...]
    now: datetime
    more: bool
    log_branch: str = ""
    """Of the log that they are of (ADR 0049); empty if whoever lists them does not tell."""
    scope: Scope | None = None
    """Whose executions were looked at: who names nobody is not shown more than he may see. None means any tenant's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStream:
    """An execution that has events, and that no listing of heads of its tenant shows."""

    execution_id: int
    tenant_id: str
    organization_id: str
    """Of its first event."""
    has_head: bool
    """Whether there is a head, which then names another tenant or organization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenPage:
    """What was found among some executions, by their ids."""

    hidden: tuple[HiddenStream, ...]
    following: int | None
    """The last execution that was looked at; None when there are no more."""


class Streams(Protocol):
    """Lists heads, and not what was made of them: what a projection lost is among them."""

    async def list_streams(
        self, scope: Scope | None, *, after: int = 0, moved_since: datetime | None = None, limit: int = 1000
    ) -> StreamPage:
        """Heads with ids above one, of those that moved at or after a time; no scope means any tenant's."""
        ...

    async def find_stream(self, scope: Scope | None, execution_id: int) -> StreamHead | None:
        """One head, None if there is none for this scope."""
        ...


class HiddenStreams(Protocol):
    """Looks for executions by their events: who lists heads believes one row an execution, which can be lost."""

    async def list_hidden(self, scope: Scope | None, *, after: int = 0, limit: int = 1000) -> HiddenPage:
        """Looks at so many executions with ids above one; whose they are is told by their first events.

        Events and heads are compared as of one moment, so an execution that is just being started is not among them.
        """
        ...
