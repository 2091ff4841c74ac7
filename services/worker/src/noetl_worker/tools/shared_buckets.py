"""Token buckets that processes of one machine share: a worker, and Python processes that hold its slots on Spark."""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from noetl_worker.application.rate_limits import MAX_BUCKETS, MAX_CLOSED_SECONDS, Bucket, Change, OwnBuckets

_FORM: Final = struct.Struct("<ddd")
_LOOK_EVERY: Final = 1_000
"""New buckets after which those that nobody uses are looked for."""


class SharedBuckets:
    """A small file each, locked for the moment in which it is changed; the clock of a machine is the same for all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with suppress(OSError):  # then nothing is shared
            directory.mkdir(exist_ok=True)
        self._alone = OwnBuckets()
        self._made = 0

    def change(self, key: str, change: Change) -> float:
        """Change a bucket; where there is nothing to share any more, one of our own."""
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        try:
            return self._changed(self._directory / name, change)
        except OSError:
            return self._alone.change(key, change)

    def _changed(self, file: Path, change: Change) -> float:
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            data = os.pread(opened, _FORM.size, 0)
            known = _read(data) if len(data) == _FORM.size else None
            bucket, told = change(known)
            if bucket is not None:
                os.pwrite(opened, _FORM.pack(bucket.tokens, bucket.filled_at, bucket.closed_until), 0)
        finally:
            os.close(opened)
        if known is None:
            self._made += 1
            if self._made % _LOOK_EVERY == 0:
                self._forget()
        return told

    def _forget(self) -> None:
        """Of many, those that are full again whoever used them, since nobody has for longer than one can be closed."""
        files = sorted(self._directory.iterdir(), key=_changed_at)
        for file in files[: max(len(files) - MAX_BUCKETS, 0)]:
            if time.time() - _changed_at(file) > MAX_CLOSED_SECONDS:
                with suppress(OSError):
                    file.unlink()


def _read(data: bytes) -> Bucket:
    tokens, filled_at, closed_until = _FORM.unpack(data)
    return Bucket(tokens=tokens, filled_at=filled_at, closed_until=closed_until)


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
