"""The settings of a node's shared memory, which services that read payloads have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from noetl_servicekit.env import Env
from noetl_servicekit.logging import get_logger

logger = get_logger()

_DAY_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryLimits:
    """How much of a node's memory copies of tables take, for how long, and which node it is."""

    budget_bytes: int
    lease_seconds: float
    grace_seconds: float
    directory: Path
    node_id: str

    @classmethod
    def read(cls, env: Env) -> SharedMemoryLimits:
        """Processes that share it must have the same."""
        return cls(
            budget_bytes=env.integer("NOETL_PAYLOAD_SHM_BYTES", default=1024 * 1024 * 1024, minimum=0),
            lease_seconds=env.number("NOETL_PAYLOAD_SHM_LEASE_SECONDS", default=120.0, minimum=0, maximum=_DAY_SECONDS),
            grace_seconds=env.number("NOETL_PAYLOAD_SHM_GRACE_SECONDS", default=30.0, minimum=1, maximum=_DAY_SECONDS),
            directory=env.path("NOETL_PAYLOAD_SHM_DIR", default=Path("/dev/shm")),  # noqa: S108 - it is what it is for
            node_id=env.text("NOETL_NODE_ID", default=""),
        )


def warn_of_shared_memory(reason: str) -> None:
    """Once a process: payloads are read from further away then, which works."""
    logger.warning("payloads.shared_memory_unavailable", reason=reason)
