"""Payloads that are too large to hold: known by their digest when all of them has passed."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator

from noetl_core.errors import Corrupt
from noetl_core.payloads import PayloadRef, refer_to_digest

CHUNK_BYTES = 4 * 1024 * 1024
"""What stores hand out at once: large enough for few round trips, small enough for many readers."""


class RunningDigest:
    """Follows a stream of bytes, and knows the reference to all of them at its end."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.size = 0

    def update(self, chunk: bytes) -> None:
        """The next bytes."""
        self._sha256.update(chunk)
        self.size += len(chunk)

    @property
    def sha256(self) -> str:
        """The digest of what has passed so far."""
        return self._sha256.hexdigest()

    def reference(self, *, tenant_id: str, organization_id: str, media_type: str) -> PayloadRef:
        """The reference to what has passed so far."""
        return refer_to_digest(
            self.sha256,
            size=self.size,
            tenant_id=tenant_id,
            organization_id=organization_id,
            media_type=media_type,
        )


async def verified(ref: PayloadRef, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The same chunks, the last one only if all of them are what the reference names.

    So a reader that got to the end has read the right bytes, and one that meets `Corrupt` has not got all of them.
    """
    digest = RunningDigest()
    held_back = b""
    async for chunk in chunks:
        digest.update(chunk)
        if held_back:
            yield held_back
        held_back = chunk
    if digest.sha256 != ref.sha256:
        raise Corrupt(f"the bytes stored as {ref.uri} have the digest {digest.sha256}", uri=ref.uri)
    if held_back:
        yield held_back
