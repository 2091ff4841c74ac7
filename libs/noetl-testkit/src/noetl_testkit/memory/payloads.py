"""The in-memory twin of the payload stores."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from datetime import UTC, datetime

from noetl_core.errors import NotFound
from noetl_core.locator import payload_locator
from noetl_core.payload_streams import verified
from noetl_core.payloads import PayloadPart, PayloadRef, StoredPayload, refer_to, verify, verify_part
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE

_CHUNK_BYTES = 64 * 1024


class InMemoryPayloadStore:
    """Payloads of one process; `objects` is open to tests that want to look or to do damage."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.objects: dict[str, bytes] = {}
        self.withdrawn: dict[str, bytes] = {}
        self.owners: set[str] = set()
        self._times: dict[str, datetime] = {}
        self._withdrawn_times: dict[str, datetime] = {}
        self._clock = clock

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Keep the bytes under their locator."""
        ref = refer_to(data, tenant_id=tenant_id, organization_id=organization_id, media_type=media_type)
        if self.objects.get(ref.uri) != data:
            self.objects[ref.uri] = data
            self._times[ref.uri] = self._clock()
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
        for objects, times in ((self.objects, self._times), (self.withdrawn, self._withdrawn_times)):
            if ref.uri in objects:
                return _stored(ref.sha256, objects[ref.uri], times.get(ref.uri))
        return None

    async def exists(self, ref: PayloadRef) -> bool:
        """Whether anything is stored there."""
        return ref.uri in self.objects or ref.uri in self.withdrawn

    async def delete(self, ref: PayloadRef) -> None:
        """Forget the bytes."""
        self.objects.pop(ref.uri, None)
        self.withdrawn.pop(ref.uri, None)

    async def find(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """All payloads of an organization."""
        for stored in _of(self.objects, self._times, tenant_id, organization_id):
            yield stored

    async def withdraw(self, ref: PayloadRef, *, stored_before: datetime) -> bool:
        """Put a payload aside."""
        if ref.uri not in self.objects:
            return ref.uri in self.withdrawn
        if self._times.get(ref.uri, stored_before) > stored_before:
            return False
        self.withdrawn[ref.uri] = self.objects.pop(ref.uri)
        self._withdrawn_times[ref.uri] = self._clock()
        return True

    async def restore(self, ref: PayloadRef) -> bool:
        """Put it back."""
        if ref.uri in self.withdrawn:
            self.objects[ref.uri] = self.withdrawn.pop(ref.uri)
            self._times[ref.uri] = self._clock()
        return ref.uri in self.objects

    async def purge(self, ref: PayloadRef, *, withdrawn_before: datetime) -> bool:
        """Forget what was put aside."""
        if ref.uri not in self.withdrawn or self._withdrawn_times[ref.uri] > withdrawn_before:
            return False
        del self.withdrawn[ref.uri]
        return True

    async def claim(self, owner: str) -> frozenset[str]:
        """Remember who refers to what is here."""
        self.owners.add(owner)
        return frozenset(self.owners)

    async def find_withdrawn(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """All payloads of an organization that are put aside."""
        for stored in _of(self.withdrawn, self._withdrawn_times, tenant_id, organization_id):
            yield stored

    def _bytes(self, ref: PayloadRef) -> bytes:
        data = self.objects.get(ref.uri, self.withdrawn.get(ref.uri))
        if data is None:
            raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE)
        return data

    async def _chunks(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        data = self._bytes(ref)
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]


def _of(
    objects: Mapping[str, bytes], times: Mapping[str, datetime], tenant_id: str, organization_id: str
) -> list[StoredPayload]:
    any_of_it = str(payload_locator(tenant_id=tenant_id, organization_id=organization_id, sha256="0" * 64))
    prefix = any_of_it.removesuffix("0" * 64)
    return [
        _stored(uri.removeprefix(prefix), data, times.get(uri))
        for uri, data in objects.items()
        if uri.startswith(prefix)
    ]


def _stored(sha256: str, data: bytes, stored_at: datetime | None) -> StoredPayload:
    return StoredPayload(sha256=sha256, bytes=len(data), stored_at=stored_at)
