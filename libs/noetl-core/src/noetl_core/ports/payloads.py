"""Where immutable bytes are kept, so that events need to carry only references."""

from collections.abc import AsyncIterable, AsyncIterator
from datetime import datetime
from typing import Final, Protocol

from noetl_core.payloads import PayloadPart, PayloadRef, StoredPayload

REFERENCE_NOT_AVAILABLE: Final = "REFERENCE_NOT_AVAILABLE"
"""Code of the `NotFound` for a reference whose bytes are not there."""


TELL_WITHIN_SECONDS: Final = 900.0
"""What was stored longer ago is stored again before an event tells of it: nobody knows what a collector has done since.
Grace periods are longer than this."""


class PayloadStore(Protocol):
    """Content-addressed bytes, kept apart by tenant and organization.

    Of a reference only the address counts here; its media type and size are for those who read the bytes.
    """

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Keep the bytes durably before returning; the same bytes twice are one object and one reference."""
        ...

    async def put_stream(
        self, *, tenant_id: str, organization_id: str, chunks: AsyncIterable[bytes], media_type: str
    ) -> PayloadRef:
        """The same for bytes that come piece by piece, in bounded memory; if they break off, nothing is kept."""
        ...

    async def get(self, ref: PayloadRef) -> bytes:
        """The bytes of a reference, verified against its digest.

        Raises `NotFound` with the code REFERENCE_NOT_AVAILABLE if they are not there, and `Corrupt` if other
        bytes are in their place.
        """
        ...

    async def attach(self, ref: PayloadRef) -> memoryview:
        """The same bytes where they are, without a copy if they are in memory; nobody can write to them.

        They stay as they are for as long as the view of them is kept, whatever becomes of the payload.
        """
        ...

    async def get_part(self, ref: PayloadRef, part: PayloadPart) -> bytes:
        """Some of the bytes, verified against the digest of that part; the others are not read, and prove nothing.

        Raises as `get` does.
        """
        ...

    def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """The bytes piece by piece, in bounded memory; raises as `get` does, `Corrupt` before the last piece."""
        ...

    async def stat(self, ref: PayloadRef) -> StoredPayload | None:
        """What is stored in the place of a reference, without reading it; None when there is nothing."""
        ...

    async def exists(self, ref: PayloadRef) -> bool:
        """Whether anything is stored in the place of a reference."""
        ...

    async def delete(self, ref: PayloadRef) -> None:
        """Remove the bytes; harmless when they are not there."""
        ...

    def find(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """All payloads of an organization, in no order; those that come or go meanwhile may be missing."""
        ...


class CollectablePayloads(PayloadStore, Protocol):
    """A store whose garbage can be collected: payloads are put aside first, where readers still find them.

    A payload that is put aside is there for `get`, `stream`, `stat` and `exists`, and not for `put`, which stores it
    again, nor for `find`.
    """

    async def withdraw(self, ref: PayloadRef, *, stored_before: datetime) -> bool:
        """Put a payload aside, unless it was stored later; whether it is aside now."""
        ...

    async def restore(self, ref: PayloadRef) -> bool:
        """Put it back in its place; whether it is there now."""
        ...

    async def purge(self, ref: PayloadRef, *, withdrawn_before: datetime) -> bool:
        """Delete what was put aside, unless that was later, and nothing else; whether anything was deleted."""
        ...

    async def claim(self, owner: str) -> frozenset[str]:
        """Leave word that the events of this log refer to what is stored here; returns all logs that ever did."""
        ...

    def find_withdrawn(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """All payloads of an organization that are put aside; their time is that of their withdrawal."""
        ...


class AttachPayloads(Protocol):
    """The part of a payload store that is needed by who reads bytes in place."""

    async def attach(self, ref: PayloadRef) -> memoryview:
        """The bytes of a reference, verified; nobody can write to them."""
        ...

    async def get_part(self, ref: PayloadRef, part: PayloadPart) -> bytes:
        """Some of them, verified."""
        ...
