"""Follows an execution to its end: feeds a display with what is committed, and knows when to give up."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime

from noetl_core.envelope import StoredEvent
from noetl_core.errors import DeadlinePassed, Unavailable
from noetl_core.fold import State

from noetl_cli.connection import Clients
from noetl_cli.follow.display import Display
from noetl_cli.follow.progress import Progress
from noetl_cli.follow.watching import watch_through_outages

_TICK_SECONDS = 0.1


async def follow_to_end(
    clients: Clients,
    execution_id: int,
    *,
    display: Callable[[Progress], Display],
    timeout_seconds: float | None,
) -> State:
    """The state at the end; raises DeadlinePassed when that takes too long, and leaves the execution alone."""
    progress = Progress(execution_id)
    shown = display(progress)
    ticking = asyncio.create_task(_tick(shown), name="ticks")
    try:
        async with asyncio.timeout(timeout_seconds):
            watching = watch_through_outages(clients.events, execution_id, on_outage=shown.outage)
            async with aclosing(watching):
                async for batch in watching:
                    for event in batch:
                        shown.take(event, now=datetime.now(UTC))
                    shown.tick(now=datetime.now(UTC))
    except TimeoutError as exc:
        raise DeadlinePassed(
            f"execution {execution_id} has not ended within {timeout_seconds:g} s; it goes on\n"
            f"look at it with: noetl status {execution_id}",
            execution_id=str(execution_id),
        ) from exc
    finally:
        ticking.cancel()
        shown.close()
    return progress.state


class SilentDisplay:
    """For programs that only want the end."""

    def __init__(self, progress: Progress, *, on_event: Callable[[StoredEvent], None] = lambda _: None) -> None:
        self._progress = progress
        self._on_event = on_event

    def take(self, event: StoredEvent, *, now: datetime) -> None:
        self._progress.take(event, now=now)
        self._on_event(event)

    def tick(self, *, now: datetime) -> None:
        pass

    def outage(self, reason: Unavailable) -> None:
        pass

    def close(self) -> None:
        pass


async def _tick(display: Display) -> None:
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        display.tick(now=datetime.now(UTC))
