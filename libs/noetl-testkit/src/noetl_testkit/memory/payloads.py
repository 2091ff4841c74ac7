"""The in-memory twin of the payload stores."""

from noetl_core.errors import NotFound
from noetl_core.payloads import PayloadRef, refer_to, verify
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE


class InMemoryPayloadStore:
    """Payloads of one process; `objects` is open to tests that want to look or to do damage."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Keep the bytes under their locator."""
        ref = refer_to(data, tenant_id=tenant_id, organization_id=organization_id, media_type=media_type)
        self.objects[ref.uri] = data
        return ref

    async def get(self, ref: PayloadRef) -> bytes:
        """The bytes of a reference, verified."""
        try:
            data = self.objects[ref.uri]
        except KeyError as exc:
            raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE) from exc
        return verify(ref, data)
