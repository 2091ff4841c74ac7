"""Says of the payloads that a history refers to whether they are there and are what they should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from noetl_core.errors import Corrupt, NotFound
from noetl_core.payloads import UNKNOWN_MEDIA_TYPE, PayloadRef
from noetl_core.ports.event_log import Scope
from noetl_core.ports.payloads import PayloadStore
from noetl_core.replay.payload_uses import PayloadUse

READ_UP_TO: Final = 8 * 1024 * 1024
"""Larger payloads are looked for and not read: an answer is not to wait for gigabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPayload:
    """What became of a payload: verified, present, missing or corrupt."""

    use: PayloadUse
    status: str
    stored_bytes: int = 0


class ResolvePayloads:
    """Of one organization: a reference to somebody else's bytes leads nowhere."""

    def __init__(self, payloads: PayloadStore) -> None:
        self._payloads = payloads

    async def __call__(self, owner: Scope, use: PayloadUse) -> ResolvedPayload:
        """Look for one; raises only while the store is away."""
        ref = PayloadRef(uri=use.uri, sha256=use.sha256, media_type=UNKNOWN_MEDIA_TYPE, bytes=use.bytes)
        if (ref.tenant_id, ref.organization_id) != (owner.tenant_id, owner.organization_id):
            return ResolvedPayload(use=use, status="missing")
        stored = await self._payloads.stat(ref)
        if stored is None:
            return ResolvedPayload(use=use, status="missing")
        if stored.bytes > READ_UP_TO:
            return ResolvedPayload(use=use, status="present", stored_bytes=stored.bytes)
        try:
            await self._payloads.get(ref)
        except NotFound:
            return ResolvedPayload(use=use, status="missing")
        except Corrupt:
            return ResolvedPayload(use=use, status="corrupt", stored_bytes=stored.bytes)
        return ResolvedPayload(use=use, status="verified", stored_bytes=stored.bytes)
