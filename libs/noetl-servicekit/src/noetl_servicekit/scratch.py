"""Directories for files that nobody needs after their process: whoever is killed leaves its own to the next one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from noetl_servicekit.logging import get_logger

logger = get_logger()

_OWNER: Final = ".owner"
"""Locked for as long as somebody lives who uses the directory; the kernel lets go of it for those who are killed."""


@asynccontextmanager
async def scratch_directory(prefix: str) -> AsyncIterator[Path]:
    """One of our own, gone at the end; what others of this prefix have left is removed first."""
    await asyncio.to_thread(remove_left_over, prefix)
    directory, owner = await asyncio.to_thread(_make, prefix)
    try:
        yield directory
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        os.close(owner)


def remove_left_over(prefix: str) -> None:
    """Directories whose owners are gone. What cannot be looked into, or removed, is somebody else's."""
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            owner = os.open(directory / _OWNER, os.O_RDWR)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)
                logger.info("scratch.removed", directory=str(directory))
            finally:
                os.close(owner)


def _make(prefix: str) -> tuple[Path, int]:
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix))
        # Until it is locked, it looks as if its owner were gone: then it is somebody else's to remove.
        with suppress(FileNotFoundError):
            owner = os.open(directory / _OWNER, os.O_RDWR | os.O_CREAT, 0o600)
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (directory / _OWNER).stat().st_ino == os.fstat(owner).st_ino:
                    return directory, owner
            os.close(owner)
