"""Who owns which shard; leases are rows that expire, with an epoch that fences deposed owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What was fixed when the database was set up."""

    shard_count: int
    log_generation: str
    """Names the log, from its first event on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A running instance of a role; a new incarnation under the same name deposes the old one."""

    role: str
    instance: str
    incarnation: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLease:
    """The right to write for one shard until a time, by the database's clock."""

    role: str
    shard: int
    epoch: int
    instance: str
    address: str
    leased_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Everything a replica holds after a heartbeat."""

    leases: tuple[ShardLease, ...]
    live_instances: int
    log_branch: str = ""
    """Which continuation of the log is being written: another one once the database was put back to an earlier state.
    Empty if whoever answers cannot tell."""
    next_expiry_seconds: float = 0.0
    """When the first lease of another replica ends unless it is renewed; 0 if others hold nothing."""


class ShardLeases(Protocol):
    """Grants shard leases."""

    async def installation(self) -> Installation:
        """The facts of this installation."""
        ...

    async def hold(self, replica: Replica, *, lease_seconds: float) -> Holding:
        """Renew what the replica holds, give back what exceeds its fair share, grant what is free up to it."""
        ...

    async def release(self, replica: Replica) -> int:
        """Give everything back at once."""
        ...

    async def list_shards(self, role: str) -> Sequence[ShardLease]:
        """Every shard of a role with its owner; an empty instance means nobody."""
        ...
