"""The in-memory twin of the payload stores."""

from collections.abc import AsyncIterable, AsyncIterator

from noetl_core.errors import NotFound
from noetl_core.locator import payload_locator
from noetl_core.payload_streams import verified
from noetl_core.payloads import PayloadPart, PayloadRef, StoredPayload, refer_to, verify, verify_part
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE

_CHUNK_BYTES = 64 * 1024


class InMemoryPayloadStore:
    """Payloads of one process; `objects` is open to tests that want to look or to do damage."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Keep the bytes under their locator."""
        ref = refer_to(data, tenant_id=tenant_id, organization_id=organization_id, media_type=media_type)
        self.objects[ref.uri] = data
        return ref

    async def put_stream(
        self, *, tenant_id: str, organization_id: str, chunks: AsyncIterable[bytes], media_type: str
    ) -> PayloadRef:
        """Keep the bytes when all of them are there."""
        data = b"".join([chunk async for chunk in chunks])
        return await self.put(tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type)

    async def get(self, ref: PayloadRef) -> bytes:
        """The bytes of a reference, verified."""
        return verify(ref, self._bytes(ref))

    async def attach(self, ref: PayloadRef) -> memoryview:
        """The bytes of a reference, verified."""
        return memoryview(await self.get(ref))

    async def get_part(self, ref: PayloadRef, part: PayloadPart) -> bytes:
        """Some of the bytes, verified."""
        return verify_part(ref, part, self._bytes(ref)[part.start : part.stop])

    def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """The bytes piece by piece, verified at the end."""
        return verified(ref, self._chunks(ref))

    async def stat(self, ref: PayloadRef) -> StoredPayload | None:
        """What is stored there."""
        data = self.objects.get(ref.uri)
        return StoredPayload(sha256=ref.sha256, bytes=len(data)) if data is not None else None

    async def exists(self, ref: PayloadRef) -> bool:
        """Whether anything is stored there."""
        return ref.uri in self.objects

    async def delete(self, ref: PayloadRef) -> None:
        """Forget the bytes."""
        self.objects.pop(ref.uri, None)

    async def find(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """All payloads of an organization."""
        any_of_it = str(payload_locator(tenant_id=tenant_id, organization_id=organization_id, sha256="0" * 64))
        prefix = any_of_it.removesuffix("0" * 64)
        for uri, data in list(self.objects.items()):
            if uri.startswith(prefix):
                yield StoredPayload(sha256=uri.removeprefix(prefix), bytes=len(data))

    def _bytes(self, ref: PayloadRef) -> bytes:
        try:
            return self.objects[ref.uri]
        except KeyError as exc:
            raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE) from exc

    async def _chunks(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        data = self._bytes(ref)
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]
