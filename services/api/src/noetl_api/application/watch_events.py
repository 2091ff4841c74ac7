"""Follows an execution: what is there, then what is committed, until its terminal event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from noetl_core.envelope import StoredEvent
from noetl_core.errors import InvalidInput
from noetl_core.ports.event_log import EventLog, EventPage, Scope
from noetl_servicekit.callers import Caller

from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.scopes import visible_scope

SAFETY_NET_SECONDS: Final = 5.0
"""Only for news that got lost; whoever follows is woken by commits."""

PAGE: Final = 200


class WatchEvents:
    """Gives on what this replica commits as it is; what others commit, or a slow one missed, is read from the log."""

    def __init__(self, log: EventLog, signal: CommitSignal, *, safety_net_seconds: float = SAFETY_NET_SECONDS) -> None:
        self._log = log
        self._signal = signal
        self._safety_net_seconds = safety_net_seconds

    async def __call__(
        self, caller: Caller, scope: Scope | None, execution_id: int, *, from_version: int = 0
    ) -> AsyncIterator[tuple[EventPage, bool]]:
        """Pages as they come, the last one with True: nothing will follow it."""
        if from_version < 0:
            raise InvalidInput("versions count from 1")
        following = from_version or 1
        visible = visible_scope(caller, scope)
        with self._signal.watching(execution_id) as watcher:
            # Also proves that the caller may see it, before anything is given on.
            page = self._signal.recent.page(visible, execution_id, following) or await self._log.read(
                visible, execution_id, from_version=following, limit=PAGE
            )
            while True:
                following += len(page.events)
                has_all = following > page.head_version
                ended = page.terminal and has_all
                if page.events or ended:
                    yield page, ended
                if ended:
                    return
                if has_all:
                    await watcher.wait_beyond(page.head_version, seconds=self._safety_net_seconds)
                page = _page(*watcher.take(following)) or await self._log.read(
                    visible, execution_id, from_version=following, limit=PAGE
                )


def _page(events: tuple[StoredEvent, ...], ended: bool) -> EventPage | None:
    if not events:
        return None
    return EventPage(events=events, head_version=events[-1].stream_version, terminal=ended)
