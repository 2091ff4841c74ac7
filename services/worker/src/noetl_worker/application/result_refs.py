"""Where the bytes of a step's result are, as its event tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from noetl_core.locator import payload_locator
from noetl_core.payload_hints import hint_in
from noetl_core.payloads import PayloadRef


def result_ref(reference: Mapping[str, Any]) -> PayloadRef:
    """The payload that is the result."""
    fields = {key: reference[key] for key in ("uri", "sha256", "media_type", "bytes")}
    return PayloadRef(**fields, hint=hint_in(reference))


def view_ref(reference: Mapping[str, Any]) -> PayloadRef | None:
    """The payload with the compact view of a large result; None if the result is small enough to be seen plainly."""
    view = reference.get("view")
    if view is None:
        return None
    data = result_ref(reference)
    uri = payload_locator(tenant_id=data.tenant_id, organization_id=data.organization_id, sha256=view["sha256"])
    return replace(data, uri=str(uri), sha256=view["sha256"], bytes=view["bytes"], hint=None)
