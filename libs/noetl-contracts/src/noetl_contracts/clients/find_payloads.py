"""Looks for every payload that a history refers to: one by one, so that their number does not matter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from noetl_core.canonical import JsonObject
from noetl_core.errors import Corrupt, NotFound
from noetl_core.locator import parse
from noetl_core.ports.event_log import Scope
from noetl_core.replay.payload_uses import PayloadUses

from noetl_contracts.clients.payloads import PayloadClient

READ_UP_TO: Final = 8 * 1024 * 1024
"""Larger payloads that do not come along are looked for and not read: a proof is not to wait for gigabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPayload:
    """What became of a payload: verified, present, missing or corrupt."""

    sha256: str
    uri: str
    media_type: str
    uses: int
    status: str
    stored_bytes: int = 0
    data: bytes | None = None
    """Its bytes, if they are right and not too many to come along."""

    def to_json(self) -> JsonObject:
        """As documents have it."""
        return {
            "sha256": self.sha256,
            "uri": self.uri,
            "media_type": self.media_type,
            "uses": self.uses,
            "status": self.status,
            "stored_bytes": self.stored_bytes,
            "included": self.data is not None,
        }


class FindPayloads:
    """Of one organization: a reference to somebody else's bytes leads nowhere."""

    def __init__(self, payloads: PayloadClient, *, owner: Scope, take_up_to: int) -> None:
        self._payloads = payloads
        self._owner = owner
        self._take_up_to = take_up_to

    async def __call__(self, uses: PayloadUses) -> AsyncIterator[FoundPayload]:
        """Each of them, in the order of addresses; raises only while the store is away."""
        for uri, use in uses.by_address().items():
            status, size, data = await self.look(uri)
            yield FoundPayload(
                sha256=use.sha256,
                uri=uri,
                media_type=use.media_type,
                uses=use.uses,
                status=status,
                stored_bytes=size,
                data=data,
            )

    async def look(self, uri: str) -> tuple[str, int, bytes | None]:
        """What became of one, how large it is, and its bytes if they are to come along."""
        whose = dict(parse(uri).pairs())
        if (whose.get("tenant"), whose.get("org")) != ((self._owner.tenant_id,), (self._owner.organization_id,)):
            return "missing", 0, None
        try:
            size = (await self._payloads.stat(None, uri)).ref.bytes
        except NotFound:
            return "missing", 0, None
        if size > max(self._take_up_to, READ_UP_TO):
            return "present", size, None
        held: list[bytes] = []
        try:
            async for chunk in (await self._payloads.fetch(None, uri)).chunks:
                if size <= self._take_up_to:
                    held.append(chunk)
        except NotFound:
            return "missing", 0, None
        except Corrupt:
            return "corrupt", size, None
        return "verified", size, b"".join(held) if size <= self._take_up_to else None
