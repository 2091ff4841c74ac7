"""Copies of payloads near to who reads them: asked in order, the store last, and never trusted more than it."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, Protocol

from noetl_core.canonical import sha256_hex
from noetl_core.errors import Corrupt, NotFound
from noetl_core.payload_hints import IpcHint
from noetl_core.payload_streams import CHUNK_BYTES
from noetl_core.payloads import PayloadPart, PayloadRef, StoredPayload, verify_part
from noetl_core.ports.payloads import PayloadStore

STORE: Final = "store"
HIT: Final = "hit"
TOO_LARGE: Final = "too_large"
FAILED: Final = "failed"


class Miss(StrEnum):
    """Why a tier does not give a payload."""

    ABSENT = "miss"
    STALE = "stale"
    """Its time is over, or the machine has started again since."""
    FOREIGN = "foreign"
    """It is on another node."""
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"


class PayloadTier(Protocol):
    """A bounded place for copies. It may lose any of them at any time; it never raises."""

    name: str
    verified: bool
    """Whether what it gives back has been compared with its digest already."""
    is_memory: bool
    """Whether it is as near as a tier can be: what it has is not copied further up."""

    async def load(self, ref: PayloadRef) -> bytes | memoryview | Miss | None:
        """The copy, or why there is none; None from a tier that is not meant for such payloads."""
        ...

    async def load_part(self, ref: PayloadRef, part: PayloadPart) -> bytes | memoryview | Miss | None:
        """Some bytes of the copy, compared with nothing: they have a digest of their own, which the caller knows."""
        ...

    async def keep(self, ref: PayloadRef, data: bytes, *, produced: bool) -> IpcHint | None:
        """Keep a copy of what was produced or read here, if there is room; perhaps others can be told of it."""
        ...

    async def forget(self, ref: PayloadRef) -> None:
        """The copy is no good."""
        ...


class TierReports(Protocol):
    """Who counts what tiers are good for."""

    def read(self, tier: str, outcome: str) -> None:
        """A tier was asked: hit, or which kind of miss."""
        ...

    def resolved(self, tier: str, seconds: float) -> None:
        """Somebody who asked has the bytes, from this tier or the store, after so long."""
        ...

    def refused(self, tier: str, reason: str) -> None:
        """A tier did not take a copy."""
        ...

    def holds(self, tier: str, size: int) -> None:
        """A tier has so many bytes now."""
        ...


def copy_name(ref: PayloadRef) -> str:
    """A file name for the copy of a payload: one for each address, so tenants share none."""
    return hashlib.sha256(ref.uri.encode()).hexdigest()


class TieredPayloadStore:
    """A payload store behind its tiers; what is put is durable there before any tier has it."""

    def __init__(
        self,
        store: PayloadStore,
        tiers: Sequence[PayloadTier],
        reports: TierReports,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self._tiers = tuple(tiers)
        self._reports = reports
        self._clock = clock
        self._loading: dict[str, asyncio.Task[bytes]] = {}

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Into the store, then into every tier: who produced it is likely to read it."""
        ref = await self._store.put(
            tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type
        )
        return replace(ref, hint=await self._keep(ref, data, self._tiers, produced=True))

    async def put_stream(
        self, *, tenant_id: str, organization_id: str, chunks: AsyncIterable[bytes], media_type: str
    ) -> PayloadRef:
        """Into the store only: what is streamed would push everything else out."""
        return await self._store.put_stream(
            tenant_id=tenant_id, organization_id=organization_id, chunks=chunks, media_type=media_type
        )

    async def get(self, ref: PayloadRef) -> bytes:
        """From the nearest tier that has the right bytes; those before it get a copy."""
        data = await self._nearest(ref)
        if isinstance(data, bytes):
            return data
        return bytes(data) if len(data) <= CHUNK_BYTES else await asyncio.to_thread(bytes, data)

    async def attach(self, ref: PayloadRef) -> memoryview:
        """The bytes where they are in memory."""
        return memoryview(await self._nearest(ref)).toreadonly()

    async def get_part(self, ref: PayloadRef, part: PayloadPart) -> bytes:
        """From the nearest tier that has the right bytes there, else from the store; no tier learns from it."""
        asked_at = self._clock()
        for tier in self._tiers:
            data = self._found(tier, await tier.load_part(ref, part))
            if data is None:
                continue
            try:
                proven = await asyncio.to_thread(verify_part, ref, part, bytes(data))
            except Corrupt:
                await self._went_bad(tier, ref)
                continue
            self._reports.read(tier.name, HIT)
            self._reports.resolved(tier.name, self._clock() - asked_at)
            return proven
        proven = await self._counted(self._store.get_part(ref, part))
        self._reports.resolved(STORE, self._clock() - asked_at)
        return proven

    async def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """From a tier that need not be compared again, else from the store; no tier learns from it."""
        for tier in self._tiers:
            data = await self._load(tier, ref) if tier.verified else None
            if data is not None:
                for start in range(0, len(data), CHUNK_BYTES):
                    yield bytes(data[start : start + CHUNK_BYTES])
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

    async def _nearest(self, ref: PayloadRef) -> bytes | memoryview:
        """What a reader waits for is counted as a whole: looks in vain and copies that are made on the way too."""
        asked_at = self._clock()
        for position, tier in enumerate(self._tiers):
            data = await self._load(tier, ref)
            if data is None:
                continue
            if isinstance(data, bytes) and not tier.is_memory:
                await self._keep(ref, data, self._tiers[:position], produced=False)
            self._reports.resolved(tier.name, self._clock() - asked_at)
            return data
        stored = await self._from_store(ref)
        self._reports.resolved(STORE, self._clock() - asked_at)
        return stored

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
        data = await self._counted(self._store.get(ref))
        await self._keep(ref, data, self._tiers, produced=False)
        return data

    async def _counted(self, reading: Awaitable[bytes]) -> bytes:
        try:
            data = await reading
        except (NotFound, Corrupt) as exc:
            self._reports.read(STORE, Miss.CORRUPT if isinstance(exc, Corrupt) else Miss.ABSENT)
            raise
        self._reports.read(STORE, HIT)
        return data

    async def _load(self, tier: PayloadTier, ref: PayloadRef) -> bytes | memoryview | None:
        data = self._found(tier, await tier.load(ref))
        if data is None:
            return None
        if not tier.verified and await asyncio.to_thread(sha256_hex, bytes(data)) != ref.sha256:
            await self._went_bad(tier, ref)
            return None
        self._reports.read(tier.name, HIT)
        return data

    def _found(self, tier: PayloadTier, data: bytes | memoryview | Miss | None) -> bytes | memoryview | None:
        if isinstance(data, Miss):
            self._reports.read(tier.name, data)
            return None
        return data

    async def _went_bad(self, tier: PayloadTier, ref: PayloadRef) -> None:
        self._reports.read(tier.name, Miss.CORRUPT)
        await tier.forget(ref)

    async def _keep(
        self, ref: PayloadRef, data: bytes, tiers: Sequence[PayloadTier], *, produced: bool
    ) -> IpcHint | None:
        hints = [await tier.keep(ref, data, produced=produced) for tier in tiers]
        return next((hint for hint in hints if hint is not None), None)
