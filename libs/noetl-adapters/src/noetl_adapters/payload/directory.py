"""Payloads as files of a directory: `<tenant>/<organization>/aa/bb/<sha256>`, whole and durable or not there."""

import asyncio
import errno
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from noetl_core.errors import InvalidInput, NotFound, Unavailable
from noetl_core.payloads import PayloadRef, refer_to, verify
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE

LEFTOVER_SECONDS = 3600.0
"""A temporary file of this age belongs to a writer that died: no write takes that long."""

_TEMPORARY = ".tmp"
"""No tenant is called so: a leading dot is always percent-encoded."""

_MAX_NAME_BYTES = 255
_MAX_KNOWN_DIRECTORIES = 200_000


class DirectoryPayloadStore:
    """Any number of processes may share the directory; it must be on one file system."""

    def __init__(self, root: Path, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self._wall_clock = wall_clock
        self._durable_directories: set[Path] = set()

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
        try:
            await asyncio.to_thread(self._write, target, data)
        except OSError as exc:
            raise Unavailable(f"the payload directory cannot be written: {exc.strerror}") from exc
        return ref

    async def get(self, ref: PayloadRef) -> bytes:
        """The bytes of a reference, verified."""
        try:
            return await asyncio.to_thread(_read, self._path(ref), ref)
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE) from exc
        except OSError as exc:
            raise Unavailable(f"the payload directory cannot be read: {exc.strerror}") from exc

    async def sweep_leftovers(self) -> int:
        """Remove what writers that died left half done; to be called when a service starts."""
        return await asyncio.to_thread(self._sweep)

    def _path(self, ref: PayloadRef) -> Path:
        tenant, organization = _name(ref.tenant_id), _name(ref.organization_id)
        return self.root / tenant / organization / ref.sha256[:2] / ref.sha256[2:4] / ref.sha256

    def _write(self, target: Path, data: bytes) -> None:
        try:
            # Compared, not trusted: writing the same payload again also heals a file that went bad.
            if target.read_bytes() == data:
                # Whoever wrote it may not have come as far as this yet.
                self._make_durable(target.parent)
                _sync_directory(target.parent)
                return
        except FileNotFoundError:
            pass
        try:
            self._write_new(target, data)
        except FileNotFoundError:  # somebody removed a directory that we knew
            self._durable_directories.clear()
            self._write_new(target, data)

    def _write_new(self, target: Path, data: bytes) -> None:
        temporary = self.root / _TEMPORARY / secrets.token_hex(16)
        self._make_durable(temporary.parent)
        self._make_durable(target.parent)
        try:
            _write_synced(temporary, data)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)

    def _make_durable(self, directory: Path) -> None:
        """Create a directory below the root, and make its way there as durable as what will be in it."""
        if directory in self._durable_directories:
            return
        if directory == self.root:
            directory.mkdir(parents=True, exist_ok=True)
        else:
            self._make_durable(directory.parent)
            directory.mkdir(exist_ok=True)
        # Even if another process created it: it may not have come as far as this.
        _sync_directory(directory.parent)
        if len(self._durable_directories) >= _MAX_KNOWN_DIRECTORIES:
            self._durable_directories.clear()
        self._durable_directories.add(directory)

    def _sweep(self) -> int:
        removed = 0
        oldest = self._wall_clock() - LEFTOVER_SECONDS
        for leftover in (self.root / _TEMPORARY).glob("*"):
            try:
                if leftover.stat().st_mtime < oldest:
                    leftover.unlink()
                    removed += 1
            except FileNotFoundError:
                continue  # its writer was only slow, or another process swept it
        return removed


def _name(segment: str) -> str:
    """A file name for any text: one name each, never hidden, never a way out."""
    name = quote(segment, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _MAX_NAME_BYTES:
        raise InvalidInput(f"{segment[:40]!r}… is too long for a payload directory")
    return name


def _read(path: Path, ref: PayloadRef) -> bytes:
    return verify(ref, path.read_bytes())


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        waiting = memoryview(data)
        while waiting:
            waiting = waiting[os.write(descriptor, waiting) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # some network file systems have nothing to sync here
            raise
    finally:
        os.close(descriptor)
