"""Bundles of evidence on disk: written aside and renamed when they are whole, read without trusting any of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from noetl_core.canonical import decode, encode, normalize, sha256_hex
from noetl_core.errors import InvalidInput, NoetlError, NotCanonical
from noetl_core.evidence.bundle import FILES, INDEX, PAYLOAD, PAYLOADS, Artifact, artifact, index_document

MAX_DOCUMENT: Final = 1024 * 1024 * 1024
"""Bytes of a document that is read as a whole: whoever made a larger one could not have held it either."""
MAX_LINE: Final = 64 * 1024 * 1024
"""Bytes of an event's line: no message could have brought a larger one."""


class BundleWriter:
    """Writes one bundle; without a directory it only remembers what it would have written."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.artifacts: list[Artifact] = []

    def add(self, role: str, data: bytes) -> None:
        """The document of a role."""
        self._write(FILES[role], data)
        self.artifacts.append(artifact(role, FILES[role], data))

    def add_json(self, role: str, document: Any) -> None:
        """The same, of a document; what JSON has no number for, as of a history that somebody forged, is text."""
        try:
            data = encode(document)
        except NotCanonical:
            data = encode(normalize(document))
        self.add(role, data + b"\n")

    def add_payload(self, sha256: str, data: bytes) -> None:
        """Bytes that events refer to, under the digest that they refer by."""
        path = f"{PAYLOADS}{sha256}"
        self._write(path, data)
        self.artifacts.append(artifact(PAYLOAD, path, data))

    def finish(self) -> str:
        """Write the index; its digest names the whole bundle."""
        data = encode(index_document(self.artifacts)) + b"\n"
        self._write(INDEX, data)
        return sha256_hex(data)

    def _write(self, path: str, data: bytes) -> None:
        if self._directory is None:
            return
        target = self._directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def new_bundle(directory: Path | None) -> Iterator[BundleWriter]:
    """A bundle that is there at the end, whole, or not at all."""
    if directory is None:
        yield BundleWriter(None)
        return
    if directory.exists():
        raise InvalidInput(f"{directory} exists: evidence is not written over")
    aside = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    shutil.rmtree(aside, ignore_errors=True)  # of a process with our number that was killed
    try:
        aside.mkdir(parents=True)
        yield BundleWriter(aside)
        aside.rename(directory)
    except OSError as exc:
        raise InvalidInput(f"the evidence cannot be written to {directory}: {exc}") from exc
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_report(file: Path, text: str) -> None:
    """A report at its place, whole; what was there stays if it cannot be written."""
    aside = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        aside.write_text(text, encoding="utf-8", newline="\n")
        aside.replace(file)
    except OSError as exc:
        raise InvalidInput(f"the report cannot be written to {file}: {exc}") from exc
    finally:
        with suppress(OSError):  # Where nothing can be written, nothing can be removed either.
            aside.unlink()


def open_file(file: Path) -> BufferedReader | None:
    """A file of a bundle, if it is one: a link leads out of it, and a pipe or a device may never end.

    It is looked at when it is open, so that nobody can put something else in its place between the two.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


class BundleReader:
    """Reads one; what is not there, not a file, or not JSON, is None."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        index = self._read(directory / INDEX)
        if index is None:
            raise InvalidInput(f"{directory} is no evidence: it has no {INDEX}")
        self._index = index

    def found(self) -> tuple[list[Artifact], list[str]]:
        """Every file but the index, as it is, and the paths of whatever else is there and belongs to no bundle."""
        files: list[Artifact] = []
        others: list[str] = []
        for path, is_file in sorted(self._entries()):
            found = self._digested(path) if is_file and path != INDEX else None
            if found is not None:
                files.append(found)
            elif path != INDEX:
                others.append(_readable(path))
        return files, others

    def _entries(self, below: str = "") -> Iterator[tuple[str, bool]]:
        """Paths, and whether each is a file; no deeper than payloads are, since other directories may never end."""
        try:
            with os.scandir(self._directory / below) as entries:
                for entry in entries:
                    if f"{entry.name}/" == PAYLOADS and not below and entry.is_dir(follow_symlinks=False):
                        yield from self._entries(PAYLOADS)
                    else:
                        yield below + entry.name, entry.is_file(follow_symlinks=False)
        except OSError:  # a directory that may not be looked into
            yield below or ".", False

    def _digested(self, path: str) -> Artifact | None:
        """Piece by piece, since anybody's file may be larger than all memory."""
        file = open_file(self._directory / path)
        if file is None:
            return None
        with file, suppress(OSError):
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            role = PAYLOAD if path.startswith(PAYLOADS) else ""
            return Artifact(role=role, path=_readable(path), size=file.tell(), sha256=sha256)
        return None

    def index_sha256(self) -> str:
        """What names the whole bundle."""
        return sha256_hex(self._index)

    def index(self) -> Any:
        """The index."""
        return _decoded(self._index)

    def document(self, role: str) -> Any:
        """The document of a role."""
        return _decoded(self._read(self._directory / FILES[role]))

    def lines(self, role: str) -> Iterator[bytes]:
        """Lines of a role's file."""
        file = open_file(self._directory / FILES[role])
        if file is None:
            return
        with file, suppress(OSError):
            while line := file.readline(MAX_LINE):
                yield line.rstrip(b"\n")
                if len(line) == MAX_LINE:
                    return  # that was no event, and nobody knows where the next one begins

    def _read(self, path: Path) -> bytes | None:
        file = open_file(path)
        if file is None:
            return None
        with file, suppress(OSError):
            size = os.fstat(file.fileno()).st_size
            return file.read(size) if size <= MAX_DOCUMENT else None
        return None


def _decoded(data: bytes | None) -> Any:
    """What bytes say; nothing if it is nested deeper than anything that can be spelt again, and so compared."""
    try:
        value = None if data is None else decode(data)
        encode(value)
        return value
    except NoetlError:
        return None


def _readable(path: str) -> str:
    """A name that is no UTF-8 cannot be told to anybody as it is."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
