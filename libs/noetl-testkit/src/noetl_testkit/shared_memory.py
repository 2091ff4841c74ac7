"""A node with shared memory for tests: its clock stands still, and its processes can be thrown away."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from noetl_adapters.arrow.ipc import ArrowTables
from noetl_adapters.payload.shm_directory import NodeDirectory, directory_name
from noetl_adapters.payload.shm_segment import Machine
from noetl_adapters.payload.shm_tier import SharedMemoryTier
from noetl_adapters.payload.tiers import Miss
from noetl_core.payloads import PayloadRef, refer_to
from noetl_core.ports.tables import MEDIA_TYPE

SECOND_NS = 1_000_000_000
LEASE_SECONDS, GRACE_SECONDS = 120.0, 30.0
THIS_MACHINE = Machine(node_id="node-1", boot_id="boot-1")


class Reports:
    """What one process has counted."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.size = 0

    def read(self, tier: str, outcome: str) -> None:
        self.reads[outcome] += 1

    def resolved(self, tier: str, seconds: float) -> None:
        """How long it took is of no interest to most tests."""

    def refused(self, tier: str, reason: str) -> None:
        self.refusals[reason] += 1

    def holds(self, tier: str, size: int) -> None:
        self.size = size


class Node:
    """The shared memory of one machine."""

    def __init__(self, parent: Path, *, budget_bytes: int = 64_000_000) -> None:
        self.parent = parent
        self.path = parent / directory_name("file:///a/store", {})
        self.budget_bytes = budget_bytes
        self.room_bytes = 1 << 40
        self.now_ns = 5_000 * SECOND_NS
        self.warnings: list[str] = []

    def process(self, machine: Machine = THIS_MACHINE) -> Process:
        """One more process that uses it."""
        return Process(self, machine)

    def pass_seconds(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)

    def segments(self) -> list[Path]:
        return sorted(path for path in self.path.glob("*") if not path.name.endswith(".lock"))


class Process:
    """One user of the node's shared memory, with its own counts."""

    def __init__(self, node: Node, machine: Machine) -> None:
        self.reports = Reports()
        self.directory = NodeDirectory.open(node.path)
        self.tier = SharedMemoryTier(
            self.directory,
            machine,
            budget_bytes=node.budget_bytes,
            lease_seconds=LEASE_SECONDS,
            grace_seconds=GRACE_SECONDS,
            reports=self.reports,
            warn=node.warnings.append,
            clock_ns=lambda: node.now_ns,
            now=lambda: datetime.fromtimestamp(node.now_ns / SECOND_NS, UTC),
            room=lambda _: node.room_bytes,
        )

    async def produce(self, data: bytes) -> PayloadRef:
        """What a worker does with a result, after the store has it."""
        ref = reference(data)
        return replace(ref, hint=await self.tier.keep(ref, data, produced=True))

    async def pass_on(self, data: bytes) -> PayloadRef:
        """What a reader does that had to go to the store."""
        ref = reference(data)
        assert await self.tier.keep(ref, data, produced=False) is None
        return ref


def ample_room(directory: int) -> int:
    """As if the machine had more memory than any test needs."""
    return 1 << 40


def table(seed: int, *, size: int = 20_000) -> bytes:
    """A table of about so many bytes, always the same for a seed."""
    text = Random(seed).randbytes(size // 2).hex()  # noqa: S311 - the same each time
    return ArrowTables().encode([{"seed": seed, "text": text}]).data


def reference(data: bytes, *, tenant: str = "acme") -> PayloadRef:
    return refer_to(data, tenant_id=tenant, organization_id="ops", media_type=MEDIA_TYPE)


async def bytes_in(tier: SharedMemoryTier, data: bytes) -> bytes | Miss | None:
    """What a reader of this table gets."""
    found = await tier.load(reference(data))
    return bytes(found) if isinstance(found, memoryview) else found
