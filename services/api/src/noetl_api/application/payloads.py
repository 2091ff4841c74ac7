"""Shows payloads to whom they belong: by their digest, or by the result that refers to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime

from noetl_core.canonical import JsonObject
from noetl_core.errors import InvalidInput, NotFound
from noetl_core.ids import parse_id
from noetl_core.locator import Locator, is_payload, parse
from noetl_core.payload_hints import hint_in
from noetl_core.payloads import UNKNOWN_MEDIA_TYPE, PayloadRef
from noetl_core.ports.event_log import Scope
from noetl_core.ports.lineage import Lineage
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE, PayloadStore
from noetl_servicekit.callers import Caller

from noetl_api.application.scopes import visible_scope


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPayload:
    """A payload that is there: its reference with the stored length, and what a result says about it."""

    ref: PayloadRef
    stored_at: datetime | None
    reference: JsonObject | None = None


class ReadPayloads:
    """What belongs to others does not exist, whoever knows its digest."""

    def __init__(self, payloads: PayloadStore, lineage: Lineage) -> None:
        self._payloads = payloads
        self._lineage = lineage

    async def find(self, caller: Caller, scope: Scope | None, locator: str) -> FoundPayload:
        """What is known of a payload; raises `NotFound` (REFERENCE_NOT_AVAILABLE) if nothing is."""
        visible = visible_scope(caller, scope)
        parsed = parse(locator)
        reference: JsonObject | None = None
        if parsed.kind == "payload":
            ref = _by_digest(parsed)
        elif parsed.kind == "result":
            reference = await self._reference(visible, parsed)
            ref = _by_reference(reference)
        elif parsed.kind == "loop":
            raise InvalidInput(
                "a loop has no payload of its own, its items have: noetl result ID STEP shows them together"
            )
        else:
            raise InvalidInput(f"{locator!r} is neither the address of a payload nor that of a result")
        if visible is not None and (ref.tenant_id, ref.organization_id) != (visible.tenant_id, visible.organization_id):
            raise _not_available(locator)
        stored = await self._payloads.stat(ref)
        if stored is None:
            raise _not_available(locator)
        return FoundPayload(ref=replace(ref, bytes=stored.bytes), stored_at=stored.stored_at, reference=reference)

    def content(self, found: FoundPayload) -> AsyncIterator[bytes]:
        """Its bytes, the last of them only if all are right."""
        return self._payloads.stream(found.ref)

    async def _reference(self, visible: Scope | None, locator: Locator) -> JsonObject:
        execution_id = parse_id(locator.value("execution") or "", what="execution_id")
        found = await self._lineage.find(visible, execution_id, str(locator))
        if found is None:
            raise _not_available(str(locator))
        return found.reference


def _by_digest(locator: Locator) -> PayloadRef:
    sha256 = locator.segments[-1]
    if not is_payload(locator, sha256=sha256):
        raise InvalidInput(
            "a payload is addressed as noetl://tenant/<tenant>/org/<organization>/payloads/sha256/<digest>"
        )
    return PayloadRef(uri=str(locator), sha256=sha256, media_type=UNKNOWN_MEDIA_TYPE, bytes=0)


def _by_reference(reference: JsonObject) -> PayloadRef:
    return PayloadRef(
        uri=str(reference.get("uri")),
        sha256=str(reference.get("sha256")),
        media_type=str(reference.get("media_type") or UNKNOWN_MEDIA_TYPE),
        bytes=0,
        hint=hint_in(reference),
    )


def _not_available(locator: str) -> NotFound:
    return NotFound("payload", locator, code=REFERENCE_NOT_AVAILABLE)
