"""A collection as the log tells it, and what is due in it by the log's clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from noetl_core.canonical import decode, encode
from noetl_core.collection.events import PayloadsMarked, PayloadsSwept, PayloadsWithdrawn
from noetl_core.collection.reach import DIGEST_CHARACTERS, Reached
from noetl_core.envelope import Envelope
from noetl_core.errors import Corrupt
from noetl_core.payloads import PayloadRef, StoredPayload, refer_to_digest
from noetl_core.ports.event_log import Scope
from noetl_core.recorded import content_of
from noetl_core.upcasting.registry import Upcasters
from noetl_core.upcasting.releases import UPCASTERS


class Stage(Enum):
    """How far a collection is."""

    MARKED = "marked"
    WITHDRAWN = "withdrawn"
    SWEPT = "swept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One collection: the payloads that it is about, and since when they wait for what comes next."""

    execution_id: int
    scope: Scope
    stage: Stage
    since: datetime
    grace: timedelta
    listed: PayloadRef | None
    """The payloads of this stage; None if there are none."""
    count: int
    total_bytes: int

    @property
    def due_at(self) -> datetime:
        """When the next stage may begin."""
        return self.since + self.grace

    def is_due(self, now: datetime) -> bool:
        """Whether its grace period is over."""
        return self.stage is not Stage.SWEPT and now >= self.due_at


def evolve(
    cycle: Cycle | None, envelope: Envelope, *, ingest_time: datetime, upcasters: Upcasters = UPCASTERS
) -> Cycle | None:
    """The collection after one more event of its stream, in whatever order they are met; an old one as today's."""
    content = content_of(upcasters(envelope))
    if isinstance(content, PayloadsMarked):
        return Cycle(
            execution_id=envelope.execution_id,
            scope=Scope(tenant_id=envelope.tenant_id, organization_id=envelope.organization_id),
            stage=Stage.MARKED,
            since=ingest_time,
            grace=timedelta(seconds=content.grace_seconds),
            listed=content.payload_ref,
            count=content.count,
            total_bytes=content.total_bytes,
        )
    if cycle is None or not isinstance(content, PayloadsWithdrawn | PayloadsSwept):
        return cycle
    return replace(
        cycle,
        stage=Stage.WITHDRAWN if isinstance(content, PayloadsWithdrawn) else Stage.SWEPT,
        since=ingest_time,
        listed=content.payload_ref,
        count=content.count,
        total_bytes=content.total_bytes,
    )


def may_be_marked(stored: StoredPayload, reached: Reached, *, now: datetime, grace: timedelta) -> bool:
    """Young ones are on their way into events; and a store may hold files that no payload store has put there."""
    if len(stored.sha256) != DIGEST_CHARACTERS or not _is_hex(stored.sha256):
        return False
    is_young = stored.stored_at is not None and stored.stored_at > now - grace
    return not is_young and stored.sha256 not in reached


def refer(scope: Scope, stored: StoredPayload) -> PayloadRef:
    """The reference to a payload that was found in a store."""
    return refer_to_digest(
        stored.sha256, size=stored.bytes, tenant_id=scope.tenant_id, organization_id=scope.organization_id
    )


def encode_list(payloads: Iterable[StoredPayload]) -> bytes:
    """The document that says which payloads an event is about."""
    return encode([[payload.sha256, payload.bytes] for payload in payloads])


def decode_list(data: bytes) -> tuple[StoredPayload, ...]:
    """Read it back."""
    entries = decode(data)
    if not isinstance(entries, list):
        raise Corrupt("the list of a collection is not a list")
    return tuple(_listed(entry) for entry in entries)


def _listed(entry: object) -> StoredPayload:
    match entry:
        case [str() as sha256, int() as size] if _is_hex(sha256):
            return StoredPayload(sha256=sha256, bytes=size)
        case _:
            raise Corrupt("an entry in the list of a collection is not a digest and a size")


def _is_hex(text: str) -> bool:
    return not text.strip("0123456789abcdef")
