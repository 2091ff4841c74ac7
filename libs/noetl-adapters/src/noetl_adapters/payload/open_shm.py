"""Opens the shared-memory tier of this node, or says why there is none: it may be small, closed or missing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from noetl_core.ports.upkeep import Keep, Upkeep, leave_untidy

from noetl_adapters.payload.memory_room import room_bytes
from noetl_adapters.payload.shm_directory import SHM_DIRECTORY, NodeDirectory, directory_name, remove_unused
from noetl_adapters.payload.shm_segment import Machine
from noetl_adapters.payload.shm_tier import SharedMemoryTier
from noetl_adapters.payload.tiers import TierReports

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_SHORTEST_SWEEP_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemorySettings:
    """How much of a node's memory all processes of an installation take together, and for how long."""

    budget_bytes: int
    lease_seconds: float
    grace_seconds: float
    directory: Path = SHM_DIRECTORY
    node_id: str = ""
    """The host's name if empty."""


@asynccontextmanager
async def open_shared_memory(
    settings: SharedMemorySettings,
    url: str,
    environment: Mapping[str, str],
    *,
    reports: TierReports,
    warn: Callable[[str], None],
    room: Callable[[int], int] = room_bytes,
    keep: Keep = leave_untidy,
) -> AsyncIterator[SharedMemoryTier | None]:
    """The tier of the store at an address, tidy when it is opened; None, and a warning, where there can be none."""
    if not settings.budget_bytes:
        yield None
        return
    path = settings.directory / directory_name(url, environment)
    try:
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        await asyncio.to_thread(remove_unused, settings.directory, except_name=path.name)
        node = await asyncio.to_thread(NodeDirectory.open, path)
    except OSError as exc:
        warn(f"{exc.filename or path}: {exc.strerror}")
        yield None
        return
    tier = SharedMemoryTier(
        node,
        Machine(node_id=settings.node_id or socket.gethostname(), boot_id=boot_id),
        budget_bytes=settings.budget_bytes,
        lease_seconds=settings.lease_seconds,
        grace_seconds=settings.grace_seconds,
        reports=reports,
        warn=warn,
        room=room,
    )
    await tier.sweep(thoroughly=True)
    every_seconds = max(settings.grace_seconds / 2, _SHORTEST_SWEEP_SECONDS)
    keep(Upkeep(name="shared-memory", every_seconds=every_seconds, once=tier.sweep))
    try:
        yield tier
    finally:
        await tier.close()
