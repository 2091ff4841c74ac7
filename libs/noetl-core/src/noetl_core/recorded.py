"""An event as fold and decide see it: its place, its envelope and its typed content."""

from __future__ import annotations

from datetime import datetime

from noetl_core.business_objects.events import object_change
from noetl_core.envelope import Draft, Envelope, StoredEvent
from noetl_core.events import typed
from noetl_core.upcasting.registry import Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One event of a stream. `content` is None for types that this release does not know."""

    stream_version: int
    aggregate_version: int
    ingest_time: datetime
    envelope: Envelope
    content: object | None

    @property
    def decided_through(self) -> int:
        """Version of the cause whose decision this event belongs to; 0 if it is no decision."""
        value = self.envelope.meta.get("decided_through", 0)
        return value if isinstance(value, int) else 0


def record(stored: StoredEvent, upcasters: Upcasters = UPCASTERS) -> Recorded:
    """Read a stored event once, for everybody who folds it; an old one as it would be written today."""
    envelope = upcasters(stored.envelope())
    return Recorded(
        stream_version=stored.stream_version,
        aggregate_version=stored.aggregate_version,
        ingest_time=stored.ingest_time,
        envelope=envelope,
        content=content_of(envelope),
    )


def content_of(envelope: Envelope) -> object | None:
    """What an event says, typed: a fact of NoETL's own, or what a user's event says about a business object."""
    content = typed(envelope)
    return content if content is not None else object_change(envelope)


def as_if_recorded(
    draft: Draft,
    *,
    tenant_id: str,
    organization_id: str,
    execution_id: int,
    stream_version: int,
    aggregate_version: int,
    time: datetime,
) -> Recorded:
    """What a draft will look like if it is the next event: lets a turn decide on what it is about to append."""
    envelope = Envelope(
        event_id=0,
        tenant_id=tenant_id,
        organization_id=organization_id,
        execution_id=execution_id,
        event_type=draft.event_type,
        schema_version=draft.schema_version,
        aggregate_type=draft.aggregate_type,
        aggregate_id=draft.aggregate_id or str(execution_id),
        event_time=draft.event_time or time,
        idempotency_key=draft.idempotency_key,
        content_sha256="",
        node_name=draft.node_name,
        stage_id=draft.stage_id,
        frame_id=draft.frame_id,
        command_id=draft.command_id,
        result=dict(draft.result) if draft.result is not None else None,
        payload_ref=draft.payload_ref,
        meta=dict(draft.meta),
        trace=draft.trace,
    )
    return Recorded(
        stream_version=stream_version,
        aggregate_version=aggregate_version,
        ingest_time=time,
        envelope=envelope,
        content=content_of(envelope),
    )
