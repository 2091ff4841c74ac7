"""What this replica has written to streams, so that it need not read it back before it writes the next event."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from noetl_core.append import Head, LogView, Numbered, PlacedEvent, PreparedRequest
from noetl_core.envelope import EXECUTION_AGGREGATE

MOST_STREAMS: Final = 1_000
MOST_EVENTS: Final = 100_000
"""Of all streams together: of each event its key is kept, some 200 bytes. There is no bound for a single stream: it is
the longest loops and chains of steps that have the most commits."""

_PROMPT_SECONDS: Final = 0.05
_TRUSTED_SECONDS: Final = 5.0


class ServerClock:
    """PostgreSQL's clock, as it was last told, and what has passed here since that was asked.

    It is never behind the true one, and ahead by no more than the round trip took. A lease that begins by it lasts
    that much longer; nothing is judged by it that must not happen before its time.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._told: datetime | None = None
        self._asked_at = 0.0

    def hear(self, told: datetime, *, asked_at: float) -> None:
        """A round trip that took its time says too little."""
        if self.monotonic() - asked_at <= _PROMPT_SECONDS:
            self._told, self._asked_at = told, asked_at

    def now(self) -> datetime | None:
        """None if it was not told for a while."""
        passed = self.monotonic() - self._asked_at
        if self._told is None or passed > _TRUSTED_SECONDS:
            return None
        return self._told + timedelta(seconds=passed)


class _Stream:
    """A stream from its first event on: where it ends, its keys, and how far its aggregates have come."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.version = 0
        self.keys: set[str] = set()
        self.aggregates: dict[str, int] = {}

    def add(self, placed: PlacedEvent) -> None:
        stored, draft = placed.stored, placed.prepared.draft
        if stored.stream_version != self.version + 1:
            return  # a gap: it is found by its version
        self.version += 1
        self.keys.add(draft.idempotency_key)
        if draft.aggregate_type != EXECUTION_AGGREGATE:
            self.aggregates[placed.aggregate_id] = stored.aggregate_version


class RememberedStreams:
    """A view of the log that was true at the remembered heads.

    Whether it still is, is for the statement to find out that writes: it locks heads and epochs, and compares them.
    A head that has not moved proves that no key and no aggregate of its stream has either.
    """

    def __init__(self, *, most: int = MOST_STREAMS, most_events: int = MOST_EVENTS) -> None:
        self._most = most
        self._most_events = most_events
        self._events = 0
        self._streams: OrderedDict[int, _Stream] = OrderedDict()
        """The one that moved last is the last."""
        self._epochs: dict[tuple[str, int], int] = {}
        self._start_keys: OrderedDict[str, None] = OrderedDict()
        """That were used here last, whoever's: a start that is repeated should not find that out by failing."""

    def view(self, requests: Sequence[PreparedRequest], now: datetime | None) -> LogView | None:
        """None if a verdict depends on anything that is not remembered."""
        if now is None or not all(map(self._knows, requests)):
            return None
        heads: dict[int, Head] = {}
        aggregates: dict[tuple[int, str], int] = {}
        epochs: dict[tuple[str, int], int] = {}
        for prepared in requests:
            for fence in prepared.request.fences:
                epochs[(fence.role, fence.shard)] = fence.epoch
            for stream in prepared.streams:
                execution_id = stream.append.execution_id
                known = self._streams.get(execution_id)
                if known is None:
                    continue
                heads[execution_id] = known.head
                for draft in stream.drafts:
                    aggregate_id = draft.draft.aggregate_id
                    if aggregate_id in known.aggregates:
                        aggregates[(execution_id, aggregate_id)] = known.aggregates[aggregate_id]
        return LogView(now=now, heads=heads, aggregate_versions=aggregates, epochs=epochs)

    def _knows(self, prepared: PreparedRequest) -> bool:
        for fence in prepared.request.fences:
            if self._epochs.get((fence.role, fence.shard)) != fence.epoch:
                return False
        for stream in prepared.streams:
            start, known = stream.append.start, self._streams.get(stream.append.execution_id)
            if start is not None:
                if start.start_key in self._start_keys:
                    return False
                continue  # under an id that was made for it, and a key of its own; if somebody has it, an index says so
            if known is None:
                return False
            for draft in stream.drafts:
                if draft.draft.idempotency_key in known.keys or draft.draft.not_before is not None:
                    return False
        return True

    def learn(self, view: LogView, numbered: Numbered) -> None:
        """What was just committed."""
        self._epochs.update(view.epochs)
        self.learn_start_keys(numbered)
        moved = [*numbered.heads, *(head for head, _ in numbered.created)]
        following: dict[int, _Stream] = {}
        for head in moved:
            known = self._take(head.execution_id) if view.heads.get(head.execution_id) else _Stream(head)
            if known is not None and not head.terminal:
                following[head.execution_id] = known
        if not following:
            return
        for placed in numbered.events:
            stream = following.get(placed.head.execution_id)
            if stream is not None:
                stream.add(placed)
        for head in moved:
            stream = following.get(head.execution_id)
            if stream is not None and stream.version == head.version:
                stream.head = head
                self._streams[head.execution_id] = stream
                self._events += stream.version
        while len(self._streams) > self._most or self._events > self._most_events:
            self._take(next(iter(self._streams)))

    def _take(self, execution_id: int) -> _Stream | None:
        stream = self._streams.pop(execution_id, None)
        if stream is not None:
            self._events -= stream.version
        return stream

    def learn_start_keys(self, numbered: Numbered) -> None:
        """Keys that are taken, by these starts or, if those were refused, by others."""
        for _, start in numbered.created:
            if start.start_key:
                self._start_keys[start.start_key] = None
        while len(self._start_keys) > self._most:
            self._start_keys.popitem(last=False)

    def forget(self, view: LogView) -> None:
        """Something of it has moved."""
        for execution_id in view.heads:
            self._take(execution_id)
        for place in view.epochs:
            self._epochs.pop(place, None)
