"""One bucket, or a part of it, behind fsspec: what S3, GCS and Azure have in common."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from noetl_core.errors import Unavailable

PART_BYTES = 8 * 1024 * 1024
"""Parts of a large object on its way up; S3 takes 10,000 of them, and the library makes them larger if it must."""


class FsspecBucket:
    """Nothing is remembered between calls: other processes write here too."""

    def __init__(
        self,
        file_system: Any,
        root: str,
        *,
        name: str,
        upload_options: Mapping[str, object],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._file_system = file_system
        self._root = root.strip("/")
        self._upload_options = dict(upload_options)
        self._close = close

    def create(self) -> None:
        """Make the bucket itself, if it is not there; for installations on one machine, and for tests."""
        with contextlib.suppress(FileExistsError):
            self._file_system.mkdir(self._root.partition("/")[0])

    def below(self, prefix: str) -> "FsspecBucket":
        """A part of this one; it shares its connections, which stay the business of this one."""
        return FsspecBucket(
            self._file_system, self._path(prefix), name=f"{self.name}/{prefix}", upload_options=self._upload_options
        )

    def size_and_time(self, key: str) -> tuple[int, datetime | None]:
        """From the headers of an object."""
        self._file_system.invalidate_cache()
        info = self._file_system.info(self._path(key))
        if info.get("type") != "file":
            raise FileNotFoundError(key)
        return int(info["size"]), _time(info)

    def read(self, key: str, start: int, end: int) -> bytes:
        """A range of an object."""
        return bytes(self._file_system.cat_file(self._path(key), start=start, end=end))

    def write(self, key: str, data: bytes) -> None:
        """One request, unless the bytes are very many."""
        with self._of_the_bucket():
            self._file_system.pipe_file(self._path(key), data)

    def write_new(self, key: str, data: bytes) -> None:
        """The same for a key that is free, by the server's word; raises FileExistsError."""
        with self._of_the_bucket():
            self._file_system.pipe_file(self._path(key), data, mode="create")

    def upload(self, key: str, file: Path) -> None:
        """In parts, of which only a few are in memory; the object appears when all of them are there."""
        with self._of_the_bucket():
            self._file_system.put_file(str(file), self._path(key), **self._upload_options)

    def copy(self, key: str, target: str) -> None:
        """By the server itself; raises FileNotFoundError."""
        self._file_system.cp_file(self._path(key), self._path(target))

    def remove(self, key: str) -> None:
        """Harmless when it is not there."""
        with contextlib.suppress(FileNotFoundError):
            self._file_system.rm_file(self._path(key))

    def list_directories(self, key: str) -> list[str]:
        """One level, without the objects below."""
        self._file_system.invalidate_cache()
        try:
            entries = self._file_system.ls(self._path(key), detail=True)
        except FileNotFoundError:
            return []
        return sorted(_last(entry["name"]) for entry in entries if entry["type"] == "directory")

    def list_objects(self, key: str) -> list[tuple[str, int, datetime | None]]:
        """All levels."""
        self._file_system.invalidate_cache()
        entries = self._file_system.find(self._path(key), detail=True).values()
        return [
            (_last(entry["name"]), int(entry["size"]), _time(entry)) for entry in entries if entry["type"] == "file"
        ]

    def list_keys(self, key: str) -> list[str]:
        """Keys of all levels below one, as this bucket names them."""
        self._file_system.invalidate_cache()
        return sorted(name.removeprefix(f"{self._root}/") for name in self._file_system.find(self._path(key)))

    def close(self) -> None:
        """Let go of connections."""
        self._close()

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}".rstrip("/")

    @contextlib.contextmanager
    def _of_the_bucket(self) -> Iterator[None]:
        """Who writes into nothing is told that the bucket is missing, not the object."""
        try:
            yield
        except FileNotFoundError as exc:
            raise Unavailable(f"the payload store {self.name} does not exist: its bucket must be created") from exc


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _time(info: Mapping[str, Any]) -> datetime | None:
    for field in ("LastModified", "last_modified", "mtime", "updated"):
        value = info.get(field)
        if isinstance(value, datetime):
            return value
        if isinstance(value, str):
            return datetime.fromisoformat(value)
    return None
