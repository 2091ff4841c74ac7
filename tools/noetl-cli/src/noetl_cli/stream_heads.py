"""Where streams end, for commands that have to see every execution of a tenant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from noetl_core.errors import NotFound
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead, Streams

PAGE: Final = 5_000


async def all_heads(streams: Streams, scope: Scope | None = None) -> list[StreamHead]:
    """Every stream that the log has, oldest first, and not what was made of it."""
    heads: list[StreamHead] = []
    while True:
        after = heads[-1].execution_id if heads else 0
        page = await streams.list_streams(scope, after=after, limit=PAGE)
        heads += page.heads
        if not page.more or not page.heads:
            return heads


async def heads_of(streams: Streams, execution_ids: Iterable[int]) -> list[StreamHead]:
    """Those that were named, each once; raises `NotFound` for one that there is not."""
    heads: list[StreamHead] = []
    for execution_id in dict.fromkeys(execution_ids):
        head = await streams.find_stream(None, execution_id)
        if head is None:
            raise NotFound("execution", execution_id, code="execution.not_found")
        heads.append(head)
    return heads
