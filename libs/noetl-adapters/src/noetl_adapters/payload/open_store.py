"""Chooses the payload store by its address; nobody else needs to know which kinds there are."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from noetl_core.errors import InvalidInput
from noetl_core.ports.payloads import CollectablePayloads, PayloadStore
from noetl_core.ports.upkeep import Keep, leave_untidy

from noetl_adapters.payload import buckets
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_adapters.payload.disk_tier import DiskTier, owned_directory
from noetl_adapters.payload.memory_tier import MemoryTier
from noetl_adapters.payload.object_store import ObjectPayloadStore
from noetl_adapters.payload.open_shm import SharedMemorySettings, open_shared_memory
from noetl_adapters.payload.tiers import PayloadTier, TieredPayloadStore, TierReports

PAYLOAD_SCHEMES = ("file", *buckets.SCHEMES)
SPOOL_VARIABLE = "NOETL_PAYLOAD_SPOOL_DIR"
"""Where large payloads wait on their way to a bucket; the system's temporary directory if not set."""


@asynccontextmanager
async def open_payload_store(url: str, environment: Mapping[str, str]) -> AsyncIterator[CollectablePayloads]:
    """The store at `file:///path`, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.

    Endpoint and credentials come from the environment, under the names that their providers gave them.
    """
    scheme = urlsplit(url).scheme
    if scheme == "file":
        directory = DirectoryPayloadStore.from_url(url)
        await directory.sweep_leftovers()
        yield directory
    elif scheme in buckets.SCHEMES:
        spool = environment.get(SPOOL_VARIABLE)
        store = ObjectPayloadStore(
            buckets.open_bucket(url, environment), spool_directory=Path(spool) if spool else None
        )
        try:
            yield store
        finally:
            await store.close()
    else:
        raise InvalidInput(f"a payload store is addressed by a URL of {', '.join(PAYLOAD_SCHEMES)}, not of {scheme!r}")


@asynccontextmanager
async def open_tiered_store(
    url: str,
    environment: Mapping[str, str],
    *,
    memory_bytes: int,
    shared_memory: SharedMemorySettings | None = None,
    cache_directory: Path | None = None,
    cache_bytes: int = 0,
    reports: TierReports,
    warn: Callable[[str], None] = lambda reason: None,
    keep: Keep = leave_untidy,
) -> AsyncIterator[PayloadStore]:
    """The same store behind memory, shared memory and, if there is a directory for it, disk.

    A budget of 0 leaves a tier out; so does shared memory that cannot be used, with a warning.
    """
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_payload_store(url, environment))
        tiers: list[PayloadTier] = []
        if memory_bytes:
            tiers.append(MemoryTier(budget_bytes=memory_bytes, reports=reports))
        if shared_memory is not None:
            tier = await stack.enter_async_context(
                open_shared_memory(shared_memory, url, environment, reports=reports, warn=warn, keep=keep)
            )
            tiers += [tier] if tier is not None else []
        if cache_directory is not None and cache_bytes:
            directory = stack.enter_context(owned_directory(cache_directory))
            tiers.append(await asyncio.to_thread(DiskTier, directory, budget_bytes=cache_bytes, reports=reports))
        yield TieredPayloadStore(store, tiers, reports)
