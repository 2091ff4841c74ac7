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
MOST_BYTES: Final = 32 * 1024 * 1024
"""Of all streams together: of each event its key is kept, and the name of what it is about."""
LARGEST_SHARE: Final = 2
"""One stream gets half of that at most, some 70,000 events. It is the longest loops and chains of steps that have the
most commits; but one without an end is not to push out all others, which are never known again."""
_EVENT_BYTES: Final = 160
"""Besides the texts themselves."""

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
        self.bytes = 0
        self.keys: set[str] = set()
        self.aggregates: dict[str, int] = {}

    def add(self, placed: PlacedEvent) -> None:
        stored, draft = placed.stored, placed.prepared.draft
        if stored.stream_version != self.version + 1:
            return  # a gap: it is found by its version
        self.version += 1
        self.bytes += _EVENT_BYTES + len(draft.idempotency_key) + len(placed.aggregate_id)
        self.keys.add(draft.idempotency_key)
        if draft.aggregate_type != EXECUTION_AGGREGATE:
            self.aggregates[placed.aggregate_id] = stored.aggregate_version


class RememberedStreams:
    """A view of the log that was true at the remembered heads.

    Whether it still is, is for the statement to find out that writes: it locks heads and epochs, and compares them.
    A head that has not moved proves that no key and no aggregate of its stream has either.
    """

    def __init__(self, *, most: int = MOST_STREAMS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
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
            if stream is None or stream.version != head.version or stream.bytes > self._most_bytes // LARGEST_SHARE:
                continue
            stream.head = head
            self._streams[head.execution_id] = stream
            self._bytes += stream.bytes
        while len(self._streams) > self._most or self._bytes > self._most_bytes:
            self._take(next(iter(self._streams)))

    def _take(self, execution_id: int) -> _Stream | None:
        stream = self._streams.pop(execution_id, None)
        if stream is not None:
            self._bytes -= stream.bytes
        return stream

    def learn_start_keys(self, numbered: Numbered) -> None:
        """Keys that are taken, by these starts or, if those were refused, by others."""
        for _, start in numbered.created:
            if start.start_key:
                self._start_keys[start.start_key] = None
        while len(self._start_keys) > self._most:
            self._start_keys.popitem(last=False)

    def forget(self, view: LogView, found: LogView | None = None) -> None:
        """Something of it has moved: what is not as it was found, or nobody has looked."""
        for execution_id, head in view.heads.items():
            there = None if found is None else found.heads.get(execution_id)
            if there is None or (there.version, there.checksum) != (head.version, head.checksum):
                self._take(execution_id)
        for place, epoch in view.epochs.items():
            if found is None or found.epochs.get(place) != epoch:
                self._epochs.pop(place, None)
