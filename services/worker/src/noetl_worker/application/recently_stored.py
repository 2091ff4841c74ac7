"""Small payloads that were stored here a moment ago: an event may tell of them without storing them again.

Many steps give the same result run after run: nothing at all, a count, a status. To store each of them is a thread, a
file and a sync, or a request to a bucket, only to find that its bytes are there already.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from noetl_core.payloads import PayloadRef

MOST_BYTES: Final = 4 * 1024
"""Of one payload."""
MOST_PAYLOADS: Final = 1024
SECONDS: Final = 10.0
"""Collectors leave what was stored for far longer (`TELL_WITHIN_SECONDS`). This is short for another reason: to store a
payload again is what mends it, if somebody has damaged or removed it by hand."""


class SmallPayload(NamedTuple):
    """Bytes, whose they are, and what they are called."""

    tenant_id: str
    organization_id: str
    media_type: str
    body: bytes


class RecentlyStored:
    """Their references, each with a time before the store was asked to keep it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, most: int = MOST_PAYLOADS) -> None:
        self.clock = clock
        self._most = most
        self._kept: OrderedDict[SmallPayload, tuple[PayloadRef, float]] = OrderedDict()

    def find(self, payload: SmallPayload) -> PayloadRef | None:
        """Its reference, if it was stored a moment ago."""
        if len(payload.body) > MOST_BYTES:  # even to look for it would take its time
            return None
        ref, asked_at = self._kept.get(payload, (None, 0.0))
        return ref if ref is not None and self.clock() - asked_at < SECONDS else None

    def add(self, payload: SmallPayload, ref: PayloadRef, *, asked_at: float) -> None:
        """The store has it now; what is said of copies of it holds for a moment only, and is not kept."""
        if len(payload.body) > MOST_BYTES or ref.hint is not None:
            return
        self._kept.pop(payload, None)
        self._kept[payload] = ref, asked_at
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
