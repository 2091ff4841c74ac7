"""Copies of payloads near to who reads them: asked in order, the store last, and never trusted more than it."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Final, Protocol

from noetl_core.canonical import sha256_hex
from noetl_core.errors import Corrupt, NotFound
from noetl_core.payload_streams import CHUNK_BYTES
from noetl_core.payloads import PayloadRef, StoredPayload
from noetl_core.ports.payloads import PayloadStore

STORE: Final = "store"
HIT: Final = "hit"
MISS: Final = "miss"
CORRUPT: Final = "corrupt"


class PayloadTier(Protocol):
    """A bounded place for copies. It may lose any of them at any time; it never raises."""

    name: str
    verified: bool
    """Whether what it gives back has been compared with its digest already."""

    async def load(self, ref: PayloadRef) -> bytes | None:
        """The copy, if there is one."""
        ...

    async def keep(self, ref: PayloadRef, data: bytes) -> None:
        """Keep a copy, unless it is too large; older ones make room."""
        ...

    async def forget(self, ref: PayloadRef) -> None:
        """The copy is no good."""
        ...


class TierReports(Protocol):
    """Who counts what tiers are good for."""

    def read(self, tier: str, outcome: str) -> None:
        """A tier was asked: hit, miss or corrupt."""
        ...

    def holds(self, tier: str, size: int) -> None:
        """A tier has so many bytes now."""
        ...


class TieredPayloadStore:
    """A payload store behind its tiers; what is put is durable there before any tier has it."""

    def __init__(self, store: PayloadStore, tiers: Sequence[PayloadTier], reports: TierReports) -> None:
        self._store = store
        self._tiers = tuple(tiers)
        self._reports = reports
        self._loading: dict[str, asyncio.Task[bytes]] = {}

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Into the store, then into every tier: who produced it is likely to read it."""
        ref = await self._store.put(
            tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type
        )
        await self._keep(ref, data, self._tiers)
        return ref

    async def put_stream(
        self, *, tenant_id: str, organization_id: str, chunks: AsyncIterable[bytes], media_type: str
    ) -> PayloadRef:
        """Into the store only: what is streamed would push everything else out."""
        return await self._store.put_stream(
            tenant_id=tenant_id, organization_id=organization_id, chunks=chunks, media_type=media_type
        )

    async def get(self, ref: PayloadRef) -> bytes:
        """From the nearest tier that has the right bytes; those before it get a copy."""
        for position, tier in enumerate(self._tiers):
            data = await self._load(tier, ref)
            if data is not None:
                await self._keep(ref, data, self._tiers[:position])
                return data
        return await self._from_store(ref)

    async def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """From a tier that need not be compared again, else from the store; no tier learns from it."""
        for tier in self._tiers:
            data = await self._load(tier, ref) if tier.verified else None
            if data is not None:
                for start in range(0, len(data), CHUNK_BYTES):
                    yield data[start : start + CHUNK_BYTES]
                return
        async for chunk in self._store.stream(ref):
            yield chunk

    async def stat(self, ref: PayloadRef) -> StoredPayload | None:
        """The store knows."""
        return await self._store.stat(ref)

    async def exists(self, ref: PayloadRef) -> bool:
        """The store knows."""
        return await self._store.exists(ref)

    async def delete(self, ref: PayloadRef) -> None:
        """From the store and the tiers of this process; copies elsewhere are harmless, since bytes never change."""
        await self._store.delete(ref)
        for tier in self._tiers:
            await tier.forget(ref)

    def find(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """The store knows."""
        return self._store.find(tenant_id=tenant_id, organization_id=organization_id)

    async def _from_store(self, ref: PayloadRef) -> bytes:
        """All who ask at once wait for one read: the items of a loop want the same payload at the same time."""
        loading = self._loading.get(ref.uri)
        if loading is None:
            loading = self._loading[ref.uri] = asyncio.create_task(self._read_store(ref))
            loading.add_done_callback(lambda done: self._loaded(ref.uri, done))
        return await asyncio.shield(loading)

    def _loaded(self, uri: str, done: asyncio.Task[bytes]) -> None:
        self._loading.pop(uri, None)
        if not done.cancelled():
            done.exception()  # whoever still waits gets it; nobody may be left who does

    async def _read_store(self, ref: PayloadRef) -> bytes:
        try:
            data = await self._store.get(ref)
        except (NotFound, Corrupt) as exc:
            self._reports.read(STORE, CORRUPT if isinstance(exc, Corrupt) else MISS)
            raise
        self._reports.read(STORE, HIT)
        await self._keep(ref, data, self._tiers)
        return data

    async def _load(self, tier: PayloadTier, ref: PayloadRef) -> bytes | None:
        data = await tier.load(ref)
        if data is None:
            self._reports.read(tier.name, MISS)
            return None
        if not tier.verified and await asyncio.to_thread(sha256_hex, data) != ref.sha256:
            self._reports.read(tier.name, CORRUPT)
            await tier.forget(ref)
            return None
        self._reports.read(tier.name, HIT)
        return data

    async def _keep(self, ref: PayloadRef, data: bytes, tiers: Sequence[PayloadTier]) -> None:
        for tier in tiers:
            await tier.keep(ref, data)
