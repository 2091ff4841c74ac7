"""Files that are whole and survive a power failure, or are not there."""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

_MAX_KNOWN_DIRECTORIES = 200_000


class DurableDirectories:
    """Creates directories below a root, and makes their way there as durable as what will be in them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: set[Path] = set()

    def make(self, directory: Path) -> None:
        """Harmless when it is there already."""
        if directory in self._known:
            return
        if directory == self._root:
            directory.mkdir(parents=True, exist_ok=True)
        else:
            self.make(directory.parent)
            directory.mkdir(exist_ok=True)
        # Even if another process created it: it may not have come as far as this.
        sync_directory(directory.parent)
        if len(self._known) >= _MAX_KNOWN_DIRECTORIES:
            self._known.clear()
        self._known.add(directory)

    def forget(self) -> None:
        """Somebody removed a directory that we knew."""
        self._known.clear()


class NewFile:
    """A file under a temporary name: written, synced, then renamed into place, or removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A caller may give up while a thread of its own still writes; the descriptor must not become another file's.
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)

    def write(self, data: bytes) -> None:
        """Append all of the bytes."""
        waiting = memoryview(data)
        with self._lock:
            while waiting:
                waiting = waiting[os.write(self._descriptor, waiting) :]

    def move_to(self, target: Path) -> None:
        """Durable and whole under its real name when this returns."""
        with self._lock:
            try:
                os.fsync(self._descriptor)
                self.path.replace(target)
            finally:
                self._close()
        sync_directory(target.parent)

    def discard(self) -> None:
        """Leave nothing behind; harmless after `move_to`. Waits for a write that is under way."""
        with self._lock:
            self._close()
        with suppress(OSError):  # whoever sweeps tries again
            self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Names in a directory survive a power failure only after this."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # some network file systems have nothing to sync here
            raise
    finally:
        os.close(descriptor)
