"""Wakes whoever follows an execution as soon as a commit has moved it, in this replica or in another."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from noetl_core.envelope import StoredEvent
from noetl_core.errors import Unavailable
from noetl_core.ports.event_log import Scope

from noetl_api.application.recent_streams import RecentStreams

_UNKNOWN: Final = 2**63

MAX_KEPT_EVENTS: Final = 200
"""For one follower: who is further behind reads the log."""


class Watcher:
    """One follower of one execution; it remembers what it heard of while it was not waiting."""

    def __init__(self) -> None:
        self._heard_of = 0
        self._closed = False
        self._news = asyncio.Event()
        self._kept: list[StoredEvent] = []
        self._has_ended = False

    def hear(self, version: int, events: Sequence[StoredEvent] = (), *, ended: bool = False) -> None:
        self._heard_of = max(self._heard_of, version)
        self._has_ended = self._has_ended or ended
        if events:
            self._keep(events)
        self._news.set()

    def _keep(self, events: Sequence[StoredEvent]) -> None:
        if self._kept and self._kept[-1].stream_version + 1 != events[0].stream_version:
            self._kept = []
        if len(self._kept) + len(events) <= MAX_KEPT_EVENTS:
            self._kept += events
        else:
            self._kept = []

    def take(self, from_version: int) -> tuple[tuple[StoredEvent, ...], bool]:
        """What was heard of from a version on, without a gap, and whether the end is among it; nothing if unsure."""
        kept, self._kept = self._kept, []
        if not kept or not kept[0].stream_version <= from_version <= kept[-1].stream_version:
            return (), False
        return tuple(kept[from_version - kept[0].stream_version :]), self._has_ended

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def wait_beyond(self, version: int, *, seconds: float) -> None:
        """Return when the stream is known, or may be, beyond a version, and after some seconds at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._heard_of <= version and not self._closed:
                    self._news.clear()
                    await self._news.wait()
        if self._closed:
            raise Unavailable("this replica is stopping; follow the execution at another one")
        if self._heard_of == _UNKNOWN:  # good for one look only
            self._heard_of = 0


class CommitSignal:
    """Tells followers what moved, and remembers the newest of what this replica has committed."""

    def __init__(self) -> None:
        self._watchers: dict[int, set[Watcher]] = {}
        self._committing: dict[int, int] = {}
        """Executions that a commit is about to move here, and the version that was heard of meanwhile."""
        self.recent = RecentStreams()
        self._times_missed = 0
        """How often news may have been missed."""
        self._closed = False

    @property
    def watcher_count(self) -> int:
        return sum(len(watchers) for watchers in self._watchers.values())

    @contextmanager
    def watching(self, execution_id: int) -> Iterator[Watcher]:
        """Hear of every move from here on; begin before the first read, so that none falls in between."""
        watcher = Watcher()
        if self._closed:
            watcher.close()
        self._watchers.setdefault(execution_id, set()).add(watcher)
        try:
            yield watcher
        finally:
            others = self._watchers[execution_id]
            others.discard(watcher)
            if not others:
                del self._watchers[execution_id]

    @contextmanager
    def committing(self, execution_ids: Collection[int]) -> Iterator[None]:
        """Until this commit has ended, what is heard from outside of these executions waits.

        PostgreSQL tells of a commit before it answers whoever made it: followers would be sent to read what they are
        about to be given. If nothing is given to them, because the answer got lost, they are sent to read after all.
        Nor is anything forgotten that another replica has added to what is only about to be remembered here.
        """
        self._committing.update(dict.fromkeys(execution_ids, 0))
        times_missed = self._times_missed
        try:
            yield
        finally:
            if times_missed != self._times_missed:  # Perhaps of what others have added to these meanwhile.
                self.recent.forget(execution_ids)
            for execution_id in execution_ids:
                version = self._committing.pop(execution_id, 0)
                if version:
                    self.moved(execution_id, version)

    def heard(self, execution_id: int, version: int) -> None:
        """Somebody, perhaps this replica itself, has moved the stream to a version."""
        if execution_id in self._committing:
            self._committing[execution_id] = max(self._committing[execution_id], version)
        else:
            self.moved(execution_id, version)

    def moved(
        self,
        execution_id: int,
        version: int,
        events: Sequence[StoredEvent] = (),
        *,
        ended: bool = False,
        scope: Scope | None = None,
    ) -> None:
        """A commit has moved the stream to a version, by these events if it was ours; `ended` if one is its end."""
        if events and scope is not None:
            self.recent.add(scope, execution_id, events, ended=ended)
        else:
            self.recent.heard(execution_id, version)
        for watcher in self._watchers.get(execution_id, ()):
            watcher.hear(version, events, ended=ended)

    def anything_moved(self) -> None:
        """News may have been missed: everybody looks for himself."""
        self._times_missed += 1
        self.recent.forget()
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.hear(_UNKNOWN)

    def close(self) -> None:
        """Send every follower away, since this replica stops."""
        self._closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.close()
