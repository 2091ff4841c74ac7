"""Facts about a collection of payloads that nothing refers to; each collection is a stream of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from noetl_core.catalog import event_type
from noetl_core.payloads import PayloadRef

COLLECTION_PATH: Final = "noetl/payload-gc"
"""Where a playbook's path would stand: collections are listed among executions, and run none."""


@event_type("payload.marked")
@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadsMarked:
    """No event reaches these payloads; which ones is stored by reference. Their grace period begins."""

    payload_ref: PayloadRef | None
    count: int
    total_bytes: int
    grace_seconds: float


@event_type("payload.withdrawn")
@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadsWithdrawn:
    """The grace period is over: what nothing refers to was put aside, readable still, and waits as long again."""

    payload_ref: PayloadRef | None
    count: int
    total_bytes: int
    spared: int
    """Those that an event reaches by now, or that are gone."""


@event_type("payload.swept")
@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadsSwept:
    """What nothing refers to is deleted; what an event reached meanwhile is back in its place."""

    payload_ref: PayloadRef | None
    count: int
    total_bytes: int
    restored: int


CollectionEvent = PayloadsMarked | PayloadsWithdrawn | PayloadsSwept
