"""Payloads as objects of a bucket: `<prefix>/<tenant>/<organization>/aa/bb/<sha256>`, in S3, GCS or Azure."""

import asyncio
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from noetl_core.errors import NoetlError, NotFound, Unavailable
from noetl_core.payload_streams import CHUNK_BYTES, RunningDigest, verified
from noetl_core.payloads import PayloadPart, PayloadRef, StoredPayload, refer_to, verify, verify_part
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE

from noetl_adapters.payload.names import (
    OWNERS,
    WITHDRAWN,
    is_digest,
    organization_path,
    payload_path,
    segment,
    withdrawn_path,
)

T = TypeVar("T")

MAX_CALLS = 16
"""Calls of a store at the same time. They have threads of their own: a store that hangs holds up nobody else."""
PATIENCE_SECONDS = 60.0
"""For a call that moves little; the libraries try again by themselves, some of them for very long."""
COARSEST_TIME = timedelta(seconds=1)
"""The times of objects are those of full seconds in some stores."""
SLOWEST_BYTES_PER_SECOND = 256 * 1024
"""What goes up gets more time, by this rate."""


class Bucket(Protocol):
    """What is needed of an fsspec file system; its calls block, and an object is there whole or not at all."""

    name: str

    def size_and_time(self, key: str) -> tuple[int, datetime | None]:
        """Raises FileNotFoundError."""
        ...

    def read(self, key: str, start: int, end: int) -> bytes:
        """A part of an object, or what there is of it; raises FileNotFoundError."""
        ...

    def write(self, key: str, data: bytes) -> None:
        """Replace or create an object."""
        ...

    def upload(self, key: str, file: Path) -> None:
        """Replace or create an object in parts; if it fails, nothing has changed."""
        ...

    def copy(self, key: str, target: str) -> None:
        """Replace or create an object by another one; raises FileNotFoundError."""
        ...

    def remove(self, key: str) -> None:
        """Harmless when it is not there."""
        ...

    def list_directories(self, key: str) -> list[str]:
        """Last parts of the names of what looks like directories below a key."""
        ...

    def list_objects(self, key: str) -> list[tuple[str, int, datetime | None]]:
        """Last part of the name, size and time of all objects below a key."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class ObjectPayloadStore:
    """Any number of processes may share the bucket; whoever writes an object writes the same bytes."""

    def __init__(
        self, bucket: Bucket, *, spool_directory: Path | None = None, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._bucket = bucket
        self._spool_directory = spool_directory
        self._patience_seconds = patience_seconds
        self._threads = ThreadPoolExecutor(max_workers=MAX_CALLS, thread_name_prefix="payload-store")

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Keep the bytes, unless an object of this name and size is there already."""
        ref = refer_to(data, tenant_id=tenant_id, organization_id=organization_id, media_type=media_type)
        key = payload_path(ref)
        if not await self._has(key, len(data)):
            await self._call(self._bucket.write, key, data, size=len(data))
        return ref

    async def put_stream(
        self, *, tenant_id: str, organization_id: str, chunks: AsyncIterable[bytes], media_type: str
    ) -> PayloadRef:
        """Keep the bytes when the last one has come: only then their name is known, so they wait in a file."""
        organization_path(tenant_id=tenant_id, organization_id=organization_id)  # refuse bad names before any byte
        digest = RunningDigest()
        with _spooling(), tempfile.NamedTemporaryFile(prefix="noetl-payload-", dir=self._spool_directory) as spool:

            def append(chunk: bytes) -> None:
                digest.update(chunk)
                spool.write(chunk)

            async for chunk in chunks:
                await asyncio.to_thread(append, chunk)
            await asyncio.to_thread(spool.flush)
            ref = digest.reference(tenant_id=tenant_id, organization_id=organization_id, media_type=media_type)
            key = payload_path(ref)
            if not await self._has(key, ref.bytes):
                await self._call(self._bucket.upload, key, Path(spool.name), size=ref.bytes)
        return ref

    async def get(self, ref: PayloadRef) -> bytes:
        """The bytes of a reference, verified."""
        pieces = [piece async for piece in self._pieces(ref)]
        return await asyncio.to_thread(lambda: verify(ref, b"".join(pieces)))

    async def attach(self, ref: PayloadRef) -> memoryview:
        """The bytes of a reference, verified."""
        return memoryview(await self.get(ref))

    async def get_part(self, ref: PayloadRef, part: PayloadPart) -> bytes:
        """A range of the object, verified."""
        return await asyncio.to_thread(verify_part, ref, part, await self._part(ref, part))

    def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """The bytes piece by piece, verified at the end."""
        return verified(ref, self._pieces(ref))

    async def stat(self, ref: PayloadRef) -> StoredPayload | None:
        """What the store knows of the object."""
        try:
            _, size, stored_at = await self._wherever_it_is(ref)
        except FileNotFoundError:
            return None
        return StoredPayload(sha256=ref.sha256, bytes=size, stored_at=_utc(stored_at))

    async def exists(self, ref: PayloadRef) -> bool:
        """Whether there is such an object."""
        return await self.stat(ref) is not None

    async def delete(self, ref: PayloadRef) -> None:
        """Remove the object."""
        await self._call(self._bucket.remove, payload_path(ref))
        await self._call(self._bucket.remove, withdrawn_path(ref))

    async def find(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """All objects of an organization, a 256th of them at a time."""
        top = organization_path(tenant_id=tenant_id, organization_id=organization_id)
        async for stored in self._all_below(top):
            yield stored

    async def withdraw(self, ref: PayloadRef, *, stored_before: datetime) -> bool:
        """Copy the object aside, then remove it from its place: at no time is it in neither."""
        place, aside = payload_path(ref), withdrawn_path(ref)
        try:
            size, stored_at = await self._call(self._bucket.size_and_time, place)
            if not _is_before(stored_at, stored_before):
                return False
            await self._copy(place, aside, size)
        except FileNotFoundError:
            return await self._has_any(aside)
        await self._call(self._bucket.remove, place)
        return True

    async def restore(self, ref: PayloadRef) -> bool:
        """Copy it back, then remove what was put aside."""
        place, aside = payload_path(ref), withdrawn_path(ref)
        try:
            size, _ = await self._call(self._bucket.size_and_time, aside)
            await self._copy(aside, place, size)
        except FileNotFoundError:
            return await self._has_any(place)
        await self._call(self._bucket.remove, aside)
        return True

    async def purge(self, ref: PayloadRef, *, withdrawn_before: datetime) -> bool:
        """Remove the object that was put aside."""
        aside = withdrawn_path(ref)
        try:
            _, withdrawn_at = await self._call(self._bucket.size_and_time, aside)
        except FileNotFoundError:
            return False
        if not _is_before(withdrawn_at, withdrawn_before):
            return False
        await self._call(self._bucket.remove, aside)
        return True

    async def claim(self, owner: str) -> frozenset[str]:
        """A small object for each."""
        key = f"{OWNERS}/{segment(owner)}"
        if not await self._has_any(key):
            await self._call(self._bucket.write, key, owner.encode())
        return frozenset(unquote(name) for name, _, _ in await self._call(self._bucket.list_objects, OWNERS))

    async def find_withdrawn(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """All objects of an organization that were put aside."""
        top = f"{WITHDRAWN}/{organization_path(tenant_id=tenant_id, organization_id=organization_id)}"
        async for stored in self._all_below(top):
            yield stored

    async def _all_below(self, top: str) -> AsyncIterator[StoredPayload]:
        for part in await self._call(self._bucket.list_directories, top):
            for name, size, stored_at in await self._call(self._bucket.list_objects, f"{top}/{part}"):
                if is_digest(name):  # others may keep notes in a bucket
                    yield StoredPayload(sha256=name, bytes=size, stored_at=_utc(stored_at))

    async def close(self) -> None:
        """Let go of connections; calls that hang are left to themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._bucket.close)

    async def _has(self, key: str, size: int) -> bool:
        try:
            return (await self._call(self._bucket.size_and_time, key))[0] == size
        except FileNotFoundError:
            return False

    async def _has_any(self, key: str) -> bool:
        try:
            await self._call(self._bucket.size_and_time, key)
        except FileNotFoundError:
            return False
        return True

    async def _copy(self, key: str, target: str, size: int) -> None:
        """Some servers say that a copy has begun: what is not wholly there is not there."""
        await self._call(self._bucket.copy, key, target, size=size)
        copied, _ = await self._call(self._bucket.size_and_time, target)
        last = await self._call(self._bucket.read, target, size - 1, size) if size else b""
        if copied != size or len(last) != min(size, 1):
            raise Unavailable(f"the payload store {self._bucket.name} has not copied all of an object yet")

    async def _wherever_it_is(self, ref: PayloadRef) -> tuple[str, int, datetime | None]:
        """In its place or put aside; looked for once more, because it may be put back while we look."""
        for key in (payload_path(ref), withdrawn_path(ref)):
            try:
                return key, *await self._call(self._bucket.size_and_time, key)
            except FileNotFoundError:
                continue
        return payload_path(ref), *await self._call(self._bucket.size_and_time, payload_path(ref))

    async def _part(self, ref: PayloadRef, part: PayloadPart) -> bytes:
        """Asked for at once, since it is nearly always in its place."""
        place = payload_path(ref)
        for key in (place, withdrawn_path(ref), place):
            try:
                return await self._call(self._bucket.read, key, part.start, part.stop, size=part.bytes)
            except FileNotFoundError:
                continue
        raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE)

    async def _pieces(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        try:
            key, size, _ = await self._wherever_it_is(ref)
            for start in range(0, size, CHUNK_BYTES):
                yield await self._call(self._bucket.read, key, start, min(start + CHUNK_BYTES, size))
        except FileNotFoundError as exc:
            raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE) from exc

    async def _call(self, call: Callable[..., T], *arguments: Any, size: int = 0) -> T:
        """Drivers raise whatever their libraries raise: it ends here, and only the kind of it is told."""
        seconds = self._patience_seconds + size / SLOWEST_BYTES_PER_SECOND
        running = asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        try:
            async with asyncio.timeout(seconds):
                return await running
        except (FileNotFoundError, NoetlError):
            raise
        except TimeoutError as exc:
            raise Unavailable(f"the payload store {self._bucket.name} has not answered for {seconds:.0f} s") from exc
        except Exception as exc:
            reason = type(exc).__qualname__
            raise Unavailable(f"the payload store {self._bucket.name} does not do its work: {reason}") from exc


@contextmanager
def _spooling() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if isinstance(exc, ConnectionError):  # of whoever sends the bytes
            raise
        raise Unavailable(f"a payload cannot wait for its end in a file: {exc.strerror}") from exc


def _is_before(time: datetime | None, limit: datetime) -> bool:
    known = _utc(time)
    return known is None or known + COARSEST_TIME <= limit


def _utc(time: datetime | None) -> datetime | None:
    if time is None:
        return None
    return time.astimezone(UTC) if time.tzinfo is not None else time.replace(tzinfo=UTC)
