"""The directory in shared memory that all processes of an installation have on one node, and who still uses it.

Everything that they must agree on is in the directory itself, so that a process may be killed at any instruction:
files and their sizes are the account, the time of a file is the end of its lease, and locks end with who held them.
Times are those of the machine's monotonic clock, so no change of the date moves a lease.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from noetl_core.canonical import sha256_hex

from noetl_adapters.payload.buckets import ENDPOINT_VARIABLE

SHM_DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 - who may be in it is looked at

_USERS: Final = "users.lock"
"""Shared by all who use the directory; whoever can have it alone is the last."""
_ROOM: Final = "room.lock"
"""Held while room is made and taken; never while bytes are written."""
_LOCKS: Final = frozenset({_USERS, _ROOM})
_TEMPORARY: Final = "tmp-"
_ATTEMPTS: Final = 20
_LOCK_SECONDS: Final = 5.0
_ROOM_SECONDS: Final = 1.0
"""A process may be stopped while it has the lock; nobody waits for it, since all that is lost is a copy."""
_PAUSE_SECONDS: Final = 0.002
_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_NAME: Final = re.compile(r"noetl-(\d+)-[0-9a-f]{16}")


class Entry(NamedTuple):
    """A file as the file system knows it."""

    name: str
    size: int
    lease_end_ns: int

    @property
    def is_temporary(self) -> bool:
        """Whether it is being written, or was when its writer died."""
        return self.name.startswith(_TEMPORARY)


def directory_name(url: str, environment: Mapping[str, str]) -> str:
    """One for each payload store and user: stores that differ share no copies."""
    store = f"{url}\n{environment.get(ENDPOINT_VARIABLE, '')}"
    return f"noetl-{os.geteuid()}-{sha256_hex(store.encode())[:16]}"


class NodeDirectory:
    """An open directory that is ours alone; what happens in it goes through its descriptor, not through its path."""

    def __init__(self, path: Path, *, descriptor: int, users: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self._users = users

    @classmethod
    def open(cls, path: Path) -> NodeDirectory:
        """Make it if need be and count as one of its users; raises OSError where that cannot be."""
        for _ in range(_ATTEMPTS):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            try:
                descriptor = _open_owned(path)
            except FileNotFoundError:  # its last user has just removed it
                continue
            users = -1
            try:
                users = os.open(_USERS, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=descriptor)
                _lock(users, fcntl.LOCK_SH, seconds=_LOCK_SECONDS)
                if _is_named(users, _USERS, descriptor):
                    return cls(path, descriptor=descriptor, users=users)
            except FileNotFoundError:
                pass
            except BaseException:
                _close(users, descriptor)
                raise
            _close(users, descriptor)
        raise OSError(errno.EAGAIN, "others keep removing it", str(path))

    def close(self) -> None:
        """Leave; the last user takes everything away."""
        with suppress(OSError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_all(self.path, self.descriptor)
        _close(self._users, self.descriptor)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process makes or takes room meanwhile; raises TimeoutError if one does for too long."""
        lock = os.open(_ROOM, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=self.descriptor)
        try:
            _lock(lock, fcntl.LOCK_EX, seconds=_ROOM_SECONDS)
            yield
        finally:
            os.close(lock)

    def entries(self) -> list[Entry]:
        """All files but the locks."""
        found = []
        with os.scandir(self.descriptor) as files:
            for file in files:
                if file.name not in _LOCKS:
                    with suppress(FileNotFoundError):
                        status = file.stat(follow_symlinks=False)
                        found.append(Entry(file.name, status.st_size, status.st_mtime_ns))
        return found

    def open_file(self, name: str) -> int:
        """For reading only."""
        return os.open(name, os.O_RDONLY | _FLAGS, dir_fd=self.descriptor)

    def set_lease(self, name: str, end_ns: int) -> None:
        """Harmless when the file is gone."""
        with suppress(OSError):
            os.utime(name, ns=(end_ns, end_ns), dir_fd=self.descriptor, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """The name: whoever has the file in memory keeps it."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)

    def is_abandoned(self, temporary: str) -> bool:
        """Whether its writer is dead; to be asked by who is `alone`."""
        try:
            file = self.open_file(temporary)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(file)


class NewSegment:
    """A file that takes its room at once, under a name that nobody reads, and gets its own when it is whole."""

    def __init__(self, node: NodeDirectory, size: int) -> None:
        """To be made by who is `alone`: the size counts from here on."""
        self._node = node
        self._size = size
        self._temporary = f"{_TEMPORARY}{secrets.token_hex(16)}"
        self._file = os.open(
            self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=node.descriptor
        )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, size)
        except BaseException:
            self.discard()
            raise

    def fill(self, *, start: bytes, data: bytes, data_offset: int) -> None:
        """The data first, what makes it readable last."""
        os.posix_fallocate(self._file, 0, self._size)  # full memory is an error here, and a signal later
        waiting, position = memoryview(data), data_offset
        while waiting:
            written = os.pwrite(self._file, waiting, position)
            waiting, position = waiting[written:], position + written
        if os.pwrite(self._file, start, 0) != len(start):
            raise OSError(errno.EIO, "short write")

    def publish(self, name: str, *, lease_end_ns: int) -> None:
        """From here on others may read it, and nobody can write to it; to be called by who is `alone`."""
        os.fchmod(self._file, 0o400)
        os.utime(self._file, ns=(lease_end_ns, lease_end_ns))
        directory = self._node.descriptor
        os.rename(self._temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        self._temporary = ""

    def discard(self) -> None:
        """Leave nothing behind but what was published."""
        if self._temporary:
            self._node.remove(self._temporary)
        os.close(self._file)


def remove_unused(parent: Path, *, except_name: str | None = None) -> int:
    """Remove directories of ours that no process uses any more; returns how many."""
    removed = 0
    with suppress(OSError):
        for path in parent.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None and int(match[1]) == os.geteuid() and path.name != except_name:
                removed += remove_if_unused(path)
    return removed


def remove_if_unused(path: Path) -> bool:
    """Remove what processes that were killed have left; False if there is nothing, or some are still alive."""
    try:
        descriptor = _open_owned(path)
    except OSError:
        return False
    users = -1
    try:
        users = os.open(_USERS, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=descriptor)
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_all(path, descriptor)
    except OSError:
        return False
    else:
        return True
    finally:
        _close(users, descriptor)


def _remove_all(path: Path, descriptor: int) -> None:
    """By who has the lock of the users alone, which goes last: whoever waits for it sees that it is gone."""
    for name in os.listdir(descriptor):
        if name != _USERS:
            os.unlink(name, dir_fd=descriptor)
    os.unlink(_USERS, dir_fd=descriptor)
    path.rmdir()


def _open_owned(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is open to others", str(path))
    return descriptor


def _is_named(file: int, name: str, directory: int) -> bool:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return os.path.samestat(status, os.fstat(file))


def _lock(file: int, kind: int, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock") from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _close(*files: int) -> None:
    for file in files:
        if file >= 0:
            os.close(file)
