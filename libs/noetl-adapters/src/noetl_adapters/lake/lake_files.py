"""Where a lake is kept: a directory, or a bucket of S3, GCS or Azure."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from noetl_core.errors import AlreadyExists, Corrupt, InvalidInput, Unavailable
from noetl_core.ports.lake import LakeFiles

from noetl_adapters.payload.buckets import SCHEMES, open_bucket
from noetl_adapters.payload.durable_files import DurableDirectories, NewFile, sync_directory
from noetl_adapters.payload.fsspec_bucket import FsspecBucket

COPY_SECONDS = 60.0
"""For the copy of one file, within one account."""

_LOOK_SECONDS = 0.2
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
        aside = _beside(target, _CLAIM)
        self._put(aside, data)
        try:
            os.link(aside, target)
        except (FileExistsError, FileNotFoundError) as exc:  # ours is removed by nobody who has not taken the name
            raise AlreadyExists(f"another export has written {path}") from exc
        finally:
            aside.unlink(missing_ok=True)
        sync_directory(target.parent)

    def move(self, path: str, target: str, *, size: int) -> None:
        """Renamed at once."""
        place = self._target(target)
        try:
            (self._root / path).replace(place)
        except FileNotFoundError:
            _require_whole(self, path, target, size)
        sync_directory(place.parent)

    def read(self, path: str) -> bytes:
        """All of a file."""
        return (self._root / path).read_bytes()

    def size(self, path: str) -> int:
        """From the file system."""
        return (self._root / path).stat().st_size

    def list(self, prefix: str) -> Sequence[str]:
        """Files below a directory."""
        return [path for path in self._all_below(prefix) if not _is_unfinished(path)]

    def list_unfinished(self, prefix: str) -> Sequence[str]:
        """Temporary names below a directory."""
        return [path for path in self._all_below(prefix) if _is_unfinished(path)]

    def remove(self, path: str) -> None:
        """Harmless when it is not there."""
        with suppress(FileNotFoundError):
            (self._root / path).unlink()

    def _all_below(self, prefix: str) -> Sequence[str]:
        found = (self._root / prefix).rglob("*")
        return sorted(str(file.relative_to(self._root)) for file in found if file.is_file())

    def _put(self, target: Path, data: bytes) -> None:
        # No two writers share it, on whatever machine they are: one could otherwise rename half of another's file.
        file = NewFile(_beside(target, _TEMPORARY))
        try:
            file.write(data)
            file.move_to(target)
        except FileNotFoundError as exc:
            raise AlreadyExists(f"another export is ahead, and has removed {file.path.name}") from exc
        finally:
            file.discard()

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

    def move(self, path: str, target: str, *, size: int) -> None:
        """Copied by the server, then removed; whoever is stopped in between goes on with what is there."""
        # A copy that is whole is never begun again: another export may be about to remove what it would be made from.
        if not _is_whole(self, target, size):
            try:
                self._bucket.copy(path, target)
            except FileNotFoundError:
                _require_whole(self, path, target, size)
            self._wait_for_copy(target, size)
        self._bucket.remove(path)

    def _wait_for_copy(self, target: str, size: int) -> None:
        """Azure may answer when a copy has only begun, and shows nothing of it until it is done."""
        give_up = time.monotonic() + COPY_SECONDS
        while not _is_whole(self, target, size):
            if time.monotonic() > give_up:
                raise Unavailable(f"{target} is being copied still; the next export goes on with it")
            time.sleep(_LOOK_SECONDS)

    def read(self, path: str) -> bytes:
        """All of an object."""
        size, _ = self._bucket.size_and_time(path)
        return self._bucket.read(path, 0, size)

    def size(self, path: str) -> int:
        """From the headers of an object."""
        return self._bucket.size_and_time(path)[0]

    def list(self, prefix: str) -> Sequence[str]:
        """Objects below a prefix."""
        return self._bucket.list_keys(prefix)

    def list_unfinished(self, prefix: str) -> Sequence[str]:
        """None: an object appears whole."""
        return ()

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


def _is_whole(files: LakeFiles, path: str, size: int) -> bool:
    """Its name holds the digest of its bytes, so all that it may lack is an end."""
    try:
        return files.size(path) == size
    except FileNotFoundError:
        return False


def _require_whole(files: LakeFiles, path: str, target: str, size: int) -> None:
    """Nothing waits to be moved any more: it must have got its place."""
    try:
        found = files.size(target)
    except FileNotFoundError:
        raise Corrupt(f"the lake lost {path}, which was to become {target}") from None
    if found != size:
        raise Corrupt(f"{target}: its bytes are not those that were written, {found} and not {size} of them")


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f"{target.name}{kind}{secrets.token_hex(8)}")


def _is_unfinished(path: str) -> bool:
    return any(kind in path.rpartition("/")[2] for kind in (_TEMPORARY, _CLAIM))
