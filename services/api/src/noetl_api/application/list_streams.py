"""Where streams end, for whoever exports or proves all of his executions."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from noetl_core.errors import NotFound
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import HiddenPage, HiddenStreams, StreamHead, StreamPage, Streams
from noetl_servicekit.callers import Caller

from noetl_api.application.page_sizes import page_size
from noetl_api.application.scopes import visible_scope

DEFAULT_PAGE: Final = 1000
MAX_PAGE: Final = 5000


class ListStreams:
    """Straight from the log; the token decides whose."""

    def __init__(self, streams: Streams, hidden: HiddenStreams) -> None:
        self._streams = streams
        self._hidden = hidden

    async def page(
        self, caller: Caller, scope: Scope | None, *, after: int, moved_since: datetime | None, size: int
    ) -> StreamPage:
        """One page of heads, by execution id."""
        return await self._streams.list_streams(
            visible_scope(caller, scope),
            after=after,
            moved_since=moved_since,
            limit=page_size(size, default=DEFAULT_PAGE, maximum=MAX_PAGE),
        )

    async def hidden(self, caller: Caller, scope: Scope | None, *, after: int, size: int) -> HiddenPage:
        """What no page of heads shows, of some executions."""
        limit = page_size(size, default=DEFAULT_PAGE, maximum=MAX_PAGE)
        return await self._hidden.list_hidden(visible_scope(caller, scope), after=after, limit=limit)

    async def one(self, caller: Caller, scope: Scope | None, execution_id: int) -> StreamHead:
        """One head; what belongs to others does not exist."""
        head = await self._streams.find_stream(visible_scope(caller, scope), execution_id)
        if head is None:
            raise NotFound("execution", execution_id, code="execution.not_found")
        return head
