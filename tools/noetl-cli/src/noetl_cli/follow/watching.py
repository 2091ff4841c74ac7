"""Events of an execution as they are committed, across restarts of the server, each once and in order."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from noetl_contracts.clients import EventLogClient
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Unavailable

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


async def watch_through_outages(
    log: EventLogClient,
    execution_id: int,
    *,
    from_version: int = 1,
    patience_seconds: float = 60.0,
    on_outage: Callable[[Unavailable], None] = lambda _: None,
) -> AsyncGenerator[tuple[StoredEvent, ...], None]:
    """What is there, then what comes, until the execution ends.

    A server that goes away in the middle is waited for; one that never answered is not.
    """
    next_version = from_version
    has_answered = False
    away_since: float | None = None
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        try:
            async for seen in log.watch(None, execution_id, from_version=next_version):
                has_answered, away_since, pause_seconds = True, None, _FIRST_PAUSE_SECONDS
                fresh = tuple(event for event in seen.events if event.stream_version >= next_version)
                if fresh:
                    next_version = fresh[-1].stream_version + 1
                    yield fresh
                if seen.terminal:
                    return
        except Unavailable as exc:
            now = time.monotonic()
            if away_since is None:
                away_since = now
                on_outage(exc)
            if not has_answered or now - away_since > patience_seconds:
                raise
        # Also after a stream that just ended: a server that shuts down says goodbye without an error.
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
