"""Who owns which shard, for those who run the installation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from noetl_core.errors import InvalidInput
from noetl_core.ports.leases import ShardLease, ShardLeases
from noetl_servicekit.callers import Caller, Role

ROLES: Final = ("planner", "projector", "reaper")
"""Planners and projectors share executions out by shard; of reapers one has the only shard, and the others wait."""


class Shards:
    """Shards belong to the installation, not to a tenant: the addresses of services are for its administrators."""

    def __init__(self, leases: ShardLeases) -> None:
        self._leases = leases

    async def list(self, caller: Caller, *, role: str = "") -> Sequence[ShardLease]:
        """Every shard of a role, or of all; who let a lease expire does not own it."""
        caller.require(Role.ADMIN)
        if role and role not in ROLES:
            raise InvalidInput(f"shards are owned in the roles {', '.join(ROLES)}, not {role!r}")
        return [lease for one in (role,) * bool(role) or ROLES for lease in await self._leases.list_shards(one)]
