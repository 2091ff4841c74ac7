"""Small files that must be whole or absent, and secrets that only their owner reads."""

import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WINDOW_BYTES = 1024 * 1024
"""How far back from its end a log is looked at."""


def write_atomically(path: Path, text: str) -> None:
    """Readers see the old file or the new one, never a part; only the owner may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Held while a file is read, changed and written: of two who add to it at once, neither loses anything."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_or_create_secret(path: Path) -> str:
    """The secret kept in this file; the first caller makes it."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        secret = secrets.token_urlsafe(32)
        write_atomically(path, secret + "\n")
        return secret


def last_lines(path: Path, count: int, *, end: int | None = None) -> list[str]:
    """The end of a log, or of its part before `end`, however long it is; empty when there is none."""
    try:
        with path.open("rb") as file:
            stop = file.seek(0, os.SEEK_END) if end is None else end
            start = max(0, stop - _WINDOW_BYTES)
            file.seek(start)
            lines = file.read(stop - start).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    whole = lines if start == 0 else lines[1:]
    return whole[-count:] if count > 0 else []
