"""What a collection of payloads has found and done so far, for whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(slots=True, kw_only=True)
class CollectionReport:
    """Counts; of a dry run, what it would have done."""

    applied: bool
    grace_seconds: float
    phase: str = "events"
    """What is being read: events, payloads; or done."""
    events: int = 0
    organizations: int = 0
    payloads: int = 0
    payload_bytes: int = 0
    unreferenced: int = 0
    """Those in their place that no event reaches."""
    unreferenced_bytes: int = 0
    young: int = 0
    """Of these, how many are too young to be marked."""
    marked: int = 0
    marked_bytes: int = 0
    waiting: int = 0
    """Marked or withdrawn earlier, and in their grace period."""
    next_due: datetime | None = None
    """When the first of them can be dealt with."""
    withdrawn: int = 0
    withdrawn_bytes: int = 0
    spared: int = 0
    swept: int = 0
    swept_bytes: int = 0
    restored: int = 0
    collections: tuple[int, ...] = ()
    """Streams of the collections that were begun or taken further."""

    def wait_until(self, due_at: datetime) -> None:
        """Something waits until then."""
        self.next_due = due_at if self.next_due is None else min(self.next_due, due_at)

    def touched(self, execution_id: int) -> None:
        """A collection was begun, or taken further."""
        self.collections = (*self.collections, execution_id)
