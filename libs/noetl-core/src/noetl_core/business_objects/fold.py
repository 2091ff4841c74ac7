"""How what events say changes a business object. Total and pure; the row is all that there is of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.business_objects.events import DELETED, ObjectChanged
from noetl_core.canonical import JsonObject, encode
from noetl_core.errors import NotCanonical
from noetl_core.recorded import Recorded
from noetl_core.surfaces.shapes import Row, without_absent
from noetl_core.timestamps import format_time

MAX_OBJECT_BYTES: Final = 256 * 1024
"""Of all attributes together. A patch that would make more of them is counted in `overflows` and changes none."""

ACTIVE: Final = "active"


def evolve(before: Row | None, change: ObjectChanged, recorded: Recorded) -> JsonObject:
    """The row after one more event about the object: its version counts them.

    What was deleted can come back: a state or a patch after that starts from nothing, and the versions go on.
    """
    envelope = recorded.envelope
    old = before or {}
    attributes, overflow = _attributes(old, change)
    gone = change.deleted or (old.get("deleted", False) and change.state is None and change.patch is None)
    ref = envelope.payload_ref
    return without_absent(
        {
            "object_type": change.object_type,
            "object_id": change.object_id,
            "execution_id": str(envelope.execution_id),
            "status": DELETED if gone else change.status or _status_before(old),
            "version": old.get("version", 0) + 1,
            "attributes": attributes,
            "deleted": gone,
            "created_event_id": old.get("created_event_id") or str(envelope.event_id),
            "last_event_id": str(envelope.event_id),
            "last_event_type": envelope.event_type,
            "deleted_event_id": _deleted_by(old, change, str(envelope.event_id)) if gone else None,
            "created_at": old.get("created_at") or format_time(envelope.event_time),
            "updated_at": format_time(envelope.event_time),
            "payload_ref": ref.to_json() if ref is not None else old.get("payload_ref"),
            "payload_refs": old.get("payload_refs", 0) + (ref is not None),
            "derived_from": [dict(one) for one in change.derived_from] or old.get("derived_from"),
            "overflows": old.get("overflows", 0) + overflow,
            "causation_id": envelope.causation_id,
            "correlation_id": envelope.correlation_id or old.get("correlation_id"),
            "producer": envelope.producer,
            "stream_version": recorded.stream_version,
        }
    )


def merge(target: object, patch: object) -> Any:
    """RFC 7386: objects are merged member by member, null removes one, everything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def _attributes(old: Row, change: ObjectChanged) -> tuple[JsonObject, int]:
    known: JsonObject = dict(old.get("attributes", {}))
    if change.deleted:
        return {}, 0
    if change.state is not None:
        return dict(change.state), 0
    if change.patch is None:
        return known, 0
    merged: JsonObject = merge(known, change.patch)
    try:
        fits = len(encode(merged)) <= MAX_OBJECT_BYTES
    except NotCanonical:  # nested deeper than JSON may be here
        fits = False
    return (merged, 0) if fits else (known, 1)


def _deleted_by(old: Row, change: ObjectChanged, event_id: str) -> str:
    return event_id if change.deleted else str(old.get("deleted_event_id", event_id))


def _status_before(old: Row) -> str:
    status: str = old.get("status", ACTIVE)
    return ACTIVE if status == DELETED else status
