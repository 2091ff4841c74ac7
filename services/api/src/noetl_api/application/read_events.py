"""Reads events by version, page by page, and heads that moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from noetl_core.errors import InvalidInput
from noetl_core.ports.event_log import EventLog, EventPage, HeadPage, Scope
from noetl_servicekit.callers import Caller, Role

from noetl_api.application.page_sizes import page_size
from noetl_api.application.scopes import visible_scope

DEFAULT_PAGE: Final = 500
MAX_PAGE: Final = 1000
DEFAULT_HEADS: Final = 1000
MAX_HEADS: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPage:
    """A page, and the version to continue from; 0 when the range is exhausted."""

    page: EventPage
    next_version: int


class ReadEvents:
    """History for whoever may see it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def page(
        self,
        caller: Caller,
        scope: Scope | None,
        execution_id: int,
        *,
        from_version: int = 0,
        to_version: int = 0,
        size: int = 0,
    ) -> ReadPage:
        """One page of a version range; 0 stands for the start, the head and the usual size."""
        if from_version < 0 or to_version < 0:
            raise InvalidInput("versions count from 1")
        first = from_version or 1
        page = await self._log.read(
            visible_scope(caller, scope),
            execution_id,
            from_version=first,
            to_version=to_version,
            limit=page_size(size, default=DEFAULT_PAGE, maximum=MAX_PAGE),
        )
        last = min(to_version, page.head_version) if to_version else page.head_version
        # After what was read, and not by counting: events that somebody removed are no reason to ask for ever.
        following = page.events[-1].stream_version + 1 if page.events else last + 1
        return ReadPage(page=page, next_version=following if following <= last else 0)

    async def all(
        self, caller: Caller, scope: Scope | None, execution_id: int, *, from_version: int = 0, to_version: int = 0
    ) -> AsyncIterator[EventPage]:
        """Every page of a range; without an end, to the head as it is at the start."""
        following, last = from_version or 1, to_version
        while True:
            read = await self.page(caller, scope, execution_id, from_version=following, to_version=last)
            last = last or read.page.head_version
            if read.page.events:
                yield read.page
            if not read.next_version:
                return
            following = read.next_version

    async def heads(
        self,
        caller: Caller,
        shards: Sequence[int],
        *,
        moved_since: datetime | None,
        after: tuple[datetime, int] | None,
        open_only: bool,
        size: int,
    ) -> HeadPage:
        """Heads that moved; for services, since it tells of every tenant."""
        caller.require(Role.SERVICE)
        return await self._log.moved_heads(
            shards,
            moved_since=moved_since,
            after=after,
            open_only=open_only,
            limit=page_size(size, default=DEFAULT_HEADS, maximum=MAX_HEADS),
        )
