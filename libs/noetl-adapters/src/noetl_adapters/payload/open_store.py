"""Chooses the payload store by its address; nobody else needs to know which kinds there are."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from noetl_core.errors import InvalidInput
from noetl_core.ports.payloads import PayloadStore

from noetl_adapters.payload import buckets
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_adapters.payload.object_store import ObjectPayloadStore

PAYLOAD_SCHEMES = ("file", *buckets.SCHEMES)
SPOOL_VARIABLE = "NOETL_PAYLOAD_SPOOL_DIR"
"""Where large payloads wait on their way to a bucket; the system's temporary directory if not set."""


@asynccontextmanager
async def open_payload_store(url: str, environment: Mapping[str, str]) -> AsyncIterator[PayloadStore]:
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
