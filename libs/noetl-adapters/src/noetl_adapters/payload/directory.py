"""Payloads as files of a directory: `<tenant>/<organization>/aa/bb/<sha256>`, whole and durable or not there."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from noetl_core.errors import InvalidInput, NotFound, Unavailable
from noetl_core.payload_streams import CHUNK_BYTES, RunningDigest, verified
from noetl_core.payloads import PayloadPart, PayloadRef, StoredPayload, refer_to, verify, verify_part
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE

from noetl_adapters.payload.durable_files import DurableDirectories, NewFile, sync_directory
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

LEFTOVER_SECONDS = 3600.0
"""A temporary file that was not written to for so long belongs to a writer that died."""

_TEMPORARY = ".tmp"
"""No tenant is called so: a leading dot is always percent-encoded."""


class DirectoryPayloadStore:
    """Any number of processes may share the directory; it must be on one file system."""

    def __init__(self, root: Path, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self._wall_clock = wall_clock
        self._directories = DurableDirectories(root)

    @classmethod
    def from_url(cls, url: str) -> "DirectoryPayloadStore":
        """The store of a `file:///absolute/path` address."""
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidInput(f"a payload directory is addressed as file:///absolute/path, not {url!r}")
        return cls(Path(unquote(parts.path)))

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Keep the bytes; when this returns, they survive a power failure."""
        ref = refer_to(data, tenant_id=tenant_id, organization_id=organization_id, media_type=media_type)
        target = self._path(ref)
        with _writing():
            await asyncio.to_thread(self._write, target, data)
        return ref

    async def put_stream(
        self, *, tenant_id: str, organization_id: str, chunks: AsyncIterable[bytes], media_type: str
    ) -> PayloadRef:
        """Keep the bytes when the last one has come; written to a temporary file until then."""
        organization_path(tenant_id=tenant_id, organization_id=organization_id)  # refuse bad names before any byte
        digest = RunningDigest()

        def append(file: NewFile, chunk: bytes) -> None:
            digest.update(chunk)
            file.write(chunk)

        with _writing():
            file = await asyncio.to_thread(self._new_file)
        try:
            async for chunk in chunks:
                with _writing():
                    await asyncio.to_thread(append, file, chunk)
            ref = digest.reference(tenant_id=tenant_id, organization_id=organization_id, media_type=media_type)
            with _writing():
                await asyncio.to_thread(self._move, file, self._path(ref))
        except BaseException:
            await asyncio.to_thread(file.discard)
            raise
        return ref

    async def get(self, ref: PayloadRef) -> bytes:
        """The bytes of a reference, verified."""
        with _reading(ref):
            return await asyncio.to_thread(lambda: verify(ref, self._wherever_it_is(ref, Path.read_bytes)))

    async def attach(self, ref: PayloadRef) -> memoryview:
        """The bytes of a reference, verified."""
        return memoryview(await self.get(ref))

    async def get_part(self, ref: PayloadRef, part: PayloadPart) -> bytes:
        """A part of the file, verified."""
        with _reading(ref):
            data = await asyncio.to_thread(self._wherever_it_is, ref, lambda path: _read_part(path, part))
            return await asyncio.to_thread(verify_part, ref, part, data)

    def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """The bytes piece by piece, verified at the end."""
        return verified(ref, self._chunks(ref))

    async def stat(self, ref: PayloadRef) -> StoredPayload | None:
        """What the file system knows of the file."""
        try:
            with _reading(ref):
                return _stored(await asyncio.to_thread(self._wherever_it_is, ref, Path.stat), ref.sha256)
        except NotFound:
            return None

    async def exists(self, ref: PayloadRef) -> bool:
        """Whether there is such a file."""
        return await self.stat(ref) is not None

    async def delete(self, ref: PayloadRef) -> None:
        """Remove the file; its directories stay, since somebody may be about to write into them."""
        with _writing():
            for path in (self._path(ref), self._aside(ref)):
                await asyncio.to_thread(path.unlink, missing_ok=True)

    async def find(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """All files of an organization, directory by directory."""
        top = self.root / organization_path(tenant_id=tenant_id, organization_id=organization_id)
        async for stored in _all_below(top):
            yield stored

    async def withdraw(self, ref: PayloadRef, *, stored_before: datetime) -> bool:
        """Move the file aside, in one step: whoever looks for it finds it in the one place or the other."""
        with _writing():
            return await asyncio.to_thread(self._withdraw, ref, stored_before)

    async def restore(self, ref: PayloadRef) -> bool:
        """Move it back, over whatever was written in its place meanwhile: the bytes are the same."""
        with _writing():
            return await asyncio.to_thread(self._restore, ref)

    async def purge(self, ref: PayloadRef, *, withdrawn_before: datetime) -> bool:
        """Remove the file that was moved aside."""
        with _writing():
            return await asyncio.to_thread(self._purge, ref, withdrawn_before)

    async def claim(self, owner: str) -> frozenset[str]:
        """An empty file for each."""
        with _writing():
            return await asyncio.to_thread(self._claim, owner)

    async def find_withdrawn(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredPayload]:
        """All files of an organization that were moved aside."""
        top = self.root / WITHDRAWN / organization_path(tenant_id=tenant_id, organization_id=organization_id)
        async for stored in _all_below(top):
            yield stored

    async def sweep_leftovers(self) -> int:
        """Remove what writers that died left half done; to be called when a service starts."""
        return await asyncio.to_thread(self._sweep)

    def _path(self, ref: PayloadRef) -> Path:
        return self.root / payload_path(ref)

    def _aside(self, ref: PayloadRef) -> Path:
        return self.root / withdrawn_path(ref)

    def _wherever_it_is(self, ref: PayloadRef, read: Callable[[Path], T]) -> T:
        """In its place or put aside; looked for once more, because it may be put back while we look."""
        for path in (self._path(ref), self._aside(ref)):
            try:
                return read(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
        return read(self._path(ref))

    def _withdraw(self, ref: PayloadRef, stored_before: datetime) -> bool:
        place, aside = self._path(ref), self._aside(ref)
        try:
            if _changed_at(place.stat()) >= stored_before:
                return False
            self._exchange(place, aside)
        except FileNotFoundError:
            return aside.exists()
        return True

    def _restore(self, ref: PayloadRef) -> bool:
        place, aside = self._path(ref), self._aside(ref)
        try:
            self._exchange(aside, place)
        except FileNotFoundError:
            return place.exists()
        return True

    def _purge(self, ref: PayloadRef, withdrawn_before: datetime) -> bool:
        aside = self._aside(ref)
        try:
            if _changed_at(aside.stat()) >= withdrawn_before:
                return False
            aside.unlink()
        except FileNotFoundError:
            return False
        return True

    def _claim(self, owner: str) -> frozenset[str]:
        entry = self.root / OWNERS / segment(owner)
        if not entry.exists():
            self._make(entry.parent)
            entry.touch()
            sync_directory(entry.parent)
        return frozenset(unquote(path.name) for path in entry.parent.iterdir())

    def _exchange(self, source: Path, target: Path) -> None:
        source.stat()  # before directories are made for what is not there
        self._make(target.parent)
        source.replace(target)
        sync_directory(target.parent)
        sync_directory(source.parent)

    async def _chunks(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        with _reading(ref):
            file = await asyncio.to_thread(self._wherever_it_is, ref, lambda path: path.open("rb", buffering=0))
        with file:
            while True:
                with _reading(ref):
                    chunk = await asyncio.to_thread(file.read, CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk

    def _write(self, target: Path, data: bytes) -> None:
        try:
            # Compared, not trusted: writing the same payload again also heals a file that went bad.
            if target.read_bytes() == data:
                # Whoever wrote it may not have come as far as this yet.
                self._directories.make(target.parent)
                sync_directory(target.parent)
                return
        except FileNotFoundError:
            pass
        file = self._new_file()
        try:
            file.write(data)
            self._move(file, target)
        except BaseException:
            file.discard()
            raise

    def _new_file(self) -> NewFile:
        path = self.root / _TEMPORARY / secrets.token_hex(16)
        self._directories.make(path.parent)
        try:
            return NewFile(path)
        except FileNotFoundError:  # somebody removed a directory that we knew
            self._directories.forget()
            self._directories.make(path.parent)
            return NewFile(path)

    def _move(self, file: NewFile, target: Path) -> None:
        self._make(target.parent)
        file.move_to(target)

    def _make(self, directory: Path) -> None:
        self._directories.make(directory)
        try:
            directory.stat()
        except FileNotFoundError:  # somebody removed a directory that we knew
            self._directories.forget()
            self._directories.make(directory)

    def _sweep(self) -> int:
        removed = 0
        oldest = self._wall_clock() - LEFTOVER_SECONDS
        for leftover in (self.root / _TEMPORARY).glob("*"):
            try:
                if leftover.stat().st_mtime < oldest:
                    leftover.unlink()
                    removed += 1
            except OSError:
                continue  # another process swept it, or it is another user's
        return removed


async def _all_below(top: Path) -> AsyncIterator[StoredPayload]:
    with _listing():
        parts = await asyncio.to_thread(lambda: sorted(top.glob("[0-9a-f][0-9a-f]")))
    for part in parts:
        with _listing():
            found = await asyncio.to_thread(_files_below, part)
        for stored in found:
            yield stored


def _files_below(part: Path) -> list[StoredPayload]:
    found = []
    for path in part.glob("[0-9a-f][0-9a-f]/*"):
        if is_digest(path.name):  # what network file systems and file browsers leave is no payload
            with suppress(FileNotFoundError):  # deleted meanwhile
                found.append(_stored(path.stat(), path.name))
    return found


def _read_part(path: Path, part: PayloadPart) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(part.start)
        data = bytearray()
        while len(data) < part.bytes:
            chunk = file.read(part.bytes - len(data))
            if not chunk:
                break
            data += chunk
        return bytes(data)


def _stored(status: os.stat_result, sha256: str) -> StoredPayload:
    return StoredPayload(sha256=sha256, bytes=status.st_size, stored_at=_changed_at(status))


def _changed_at(status: os.stat_result) -> datetime:
    """When the file was written or moved, whichever was later: moving one leaves the time of its writing as it was."""
    return datetime.fromtimestamp(max(status.st_mtime, status.st_ctime), tz=UTC)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise Unavailable(f"the payload directory cannot be written: {exc.strerror}") from exc


@contextmanager
def _listing() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise Unavailable(f"the payload directory cannot be listed: {exc.strerror}") from exc


@contextmanager
def _reading(ref: PayloadRef) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE) from exc
    except OSError as exc:
        raise Unavailable(f"the payload directory cannot be read: {exc.strerror}") from exc
