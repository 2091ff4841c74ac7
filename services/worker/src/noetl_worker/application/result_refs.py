"""Where the bytes of a step's result are, as its event tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from noetl_core.locator import payload_locator
from noetl_core.payload_hints import hint_in
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.call_facts import FACTS
from noetl_servicekit.stored_values import MEDIA_TYPE


def result_ref(reference: Mapping[str, Any]) -> PayloadRef:
    """The payload that is the result."""
    fields = {key: reference[key] for key in ("uri", "sha256", "media_type", "bytes")}
    return PayloadRef(**fields, hint=hint_in(reference))


def view_ref(reference: Mapping[str, Any]) -> PayloadRef | None:
    """The payload with the compact view of a large result; None if the result is small enough to be seen plainly."""
    return _beside(reference, "view")


def facts_ref(reference: Mapping[str, Any]) -> PayloadRef | None:
    """The payload with what is known about the call besides; None if its event tells all that is read of it."""
    return _beside(reference, FACTS)


def _beside(reference: Mapping[str, Any], key: str) -> PayloadRef | None:
    found = reference.get(key)
    if found is None:
        return None
    data = result_ref(reference)
    uri = payload_locator(tenant_id=data.tenant_id, organization_id=data.organization_id, sha256=found["sha256"])
    return replace(data, uri=str(uri), sha256=found["sha256"], bytes=found["bytes"], media_type=MEDIA_TYPE, hint=None)
