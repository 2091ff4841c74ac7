"""Where immutable bytes are kept, so that events need to carry only references."""

from typing import Final, Protocol

from noetl_core.payloads import PayloadRef

REFERENCE_NOT_AVAILABLE: Final = "REFERENCE_NOT_AVAILABLE"
"""Code of the `NotFound` for a reference whose bytes are not there."""


class PayloadStore(Protocol):
    """Content-addressed bytes, kept apart by tenant and organization."""

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Keep the bytes durably before returning; the same bytes twice are one object and one reference."""
        ...

    async def get(self, ref: PayloadRef) -> bytes:
        """The bytes of a reference, verified against its digest.

        Raises `NotFound` with the code REFERENCE_NOT_AVAILABLE if they are not there, and `Corrupt` if other
        bytes are in their place.
        """
        ...
