"""Where a lake is kept: a directory, or a bucket of S3, GCS or Azure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from noetl_core.errors import AlreadyExists, Corrupt, InvalidInput
from noetl_core.ports.lake import LakeFiles

from noetl_adapters.payload.buckets import SCHEMES, open_bucket
from noetl_adapters.payload.durable_files import DurableDirectories, NewFile, sync_directory
from noetl_adapters.payload.fsspec_bucket import FsspecBucket

_TEMPORARY = ".tmp-"
_CLAIM = ".claim-"


class DirectoryLake:
    """Port `LakeFiles`, on a file system: written aside, synced, and renamed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directories = DurableDirectories(root)

    def write(self, path: str, data: bytes) -> None:
        """Replaces what was there."""
        self._put(self._target(path), data)

    def create(self, path: str, data: bytes) -> None:
        """A hard link takes the name only if it is free."""
        target = self._target(path)
        aside = target.with_name(f"{target.name}{_CLAIM}{os.getpid()}")
        self._put(aside, data)
        try:
            os.link(aside, target)
        except FileExistsError as exc:
            raise AlreadyExists(f"another export has written {path}") from exc
        finally:
            aside.unlink(missing_ok=True)
        sync_directory(target.parent)

    def move(self, path: str, target: str) -> None:
        """Renamed at once."""
        place = self._target(target)
        try:
            (self._root / path).replace(place)
        except FileNotFoundError:
            if not place.exists():
                raise Corrupt(f"the lake lost {path}, which was to become {target}") from None
        sync_directory(place.parent)

    def read(self, path: str) -> bytes:
        """All of a file."""
        return (self._root / path).read_bytes()

    def list(self, prefix: str) -> list[str]:
        """Files below a directory."""
        found = (self._root / prefix).rglob("*")
        return sorted(
            str(file.relative_to(self._root))
            for file in found
            if file.is_file() and not file.name.startswith(_TEMPORARY) and _CLAIM not in file.name
        )

    def remove(self, path: str) -> None:
        """Harmless when it is not there."""
        with suppress(FileNotFoundError):
            (self._root / path).unlink()

    def _put(self, target: Path, data: bytes) -> None:
        aside = target.with_name(f"{_TEMPORARY}{os.getpid()}-{target.name}")
        aside.unlink(missing_ok=True)  # of a process with our number that was killed
        file = NewFile(aside)
        file.write(data)
        file.move_to(target)

    def _target(self, path: str) -> Path:
        target = self._root / path
        self._directories.make(target.parent)
        return target


class BucketLake:
    """Port `LakeFiles`, on an object store: an object appears whole, and some names are asked to be new."""

    def __init__(self, bucket: FsspecBucket) -> None:
        self._bucket = bucket

    def write(self, path: str, data: bytes) -> None:
        """Replaces what was there."""
        self._bucket.write(path, data)

    def create(self, path: str, data: bytes) -> None:
        """The server refuses a name that is taken."""
        try:
            self._bucket.write_new(path, data)
        except FileExistsError as exc:
            raise AlreadyExists(f"another export has written {path}") from exc

    def move(self, path: str, target: str) -> None:
        """Copied by the server, then removed; whoever is stopped in between copies the same bytes again."""
        try:
            self._bucket.copy(path, target)
        except FileNotFoundError:
            if target not in self._bucket.list_keys(target.rpartition("/")[0]):
                raise Corrupt(f"the lake lost {path}, which was to become {target}") from None
        self._bucket.remove(path)

    def read(self, path: str) -> bytes:
        """All of an object."""
        size, _ = self._bucket.size_and_time(path)
        return self._bucket.read(path, 0, size)

    def list(self, prefix: str) -> list[str]:
        """Objects below a prefix."""
        return self._bucket.list_keys(prefix)

    def remove(self, path: str) -> None:
        """Harmless when it is not there."""
        self._bucket.remove(path)


def open_lake(place: str, environment: Mapping[str, str]) -> LakeFiles:
    """A directory, or an address such as s3://bucket/prefix; nothing is written yet."""
    scheme = urlsplit(place).scheme
    if scheme in SCHEMES:
        return BucketLake(open_bucket(place, environment))
    if scheme not in ("", "file"):
        raise InvalidInput(f"a lake is a directory or an address that begins with {', '.join(SCHEMES)}, not {place!r}")
    return DirectoryLake(Path(urlsplit(place).path if scheme else place).absolute())
