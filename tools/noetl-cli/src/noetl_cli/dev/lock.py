"""A directory has one owner: a lock that the kernel gives back when its holder ends, however it ends."""

import fcntl
import json
import os
import time
from pathlib import Path

from noetl_cli.dev.errors import DirectoryInUse
from noetl_cli.dev.processes import ProcessIdentity

_GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.01


class DirectoryLock:
    """Held by an open file; the file also says who holds it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise DirectoryInUse; only the lock of a holder that just ended is waited for."""
        if self._descriptor is not None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._lock(descriptor)
            me = ProcessIdentity.current()
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": me.pid, "started": me.started}).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; harmless without it."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)  # a holder that lives on is no longer the holder
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> ProcessIdentity | None:
        """Who holds it. Only reads: a probe that locked for a moment could turn away the next owner."""
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
            holder = ProcessIdentity(pid=int(document["pid"]), started=str(document["started"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return holder if holder.is_alive() else None

    def _lock(self, descriptor: int) -> None:
        # a killed process counts as ended a moment before its last thread lets go of its files
        deadline = time.monotonic() + _GRACE_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                holder = self.holder()
                if holder is not None or time.monotonic() > deadline:
                    pid = holder.pid if holder is not None else None
                    raise DirectoryInUse(directory=str(self._file.parent), pid=pid) from exc
                time.sleep(_POLL_SECONDS)
            else:
                return
