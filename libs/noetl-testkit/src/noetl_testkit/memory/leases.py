"""The in-memory twin of the shard leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from noetl_core.errors import InvalidInput
from noetl_core.leasing import LeaseRow, share_out
from noetl_core.ports.leases import Holding, Installation, Replica, ShardLease

_NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(slots=True)
class _Shard:
    epoch: int = 0
    instance: str = ""
    leased_until: datetime = _NEVER


@dataclass(slots=True)
class _Runtime:
    incarnation: str
    address: str = ""
    leased_until: datetime = _NEVER
    deposed: list[str] = field(default_factory=list)


class InMemoryShardLeases:
    """Port `ShardLeases`, by a clock that a test may set."""

    def __init__(
        self,
        *,
        shard_count: int = 64,
        roles: Sequence[str] = ("planner", "projector"),
        singletons: Sequence[str] = ("reaper",),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        counts = dict.fromkeys(roles, shard_count) | dict.fromkeys(singletons, 1)
        self._shards = {(role, shard): _Shard() for role, count in counts.items() for shard in range(count)}
        self._runtimes: dict[tuple[str, str], _Runtime] = {}
        self._shard_count = shard_count
        self._clock = clock
        self._restores = 0

    def restored(self) -> None:
        """As if the database had been put back to an earlier state."""
        self._restores += 1

    async def installation(self) -> Installation:
        """The facts of this installation."""
        return Installation(shard_count=self._shard_count, log_generation="in-memory")

    async def hold(self, replica: Replica, *, lease_seconds: float) -> Holding:
        """Renew, give back and claim."""
        if not 0 < lease_seconds <= 3600:
            raise InvalidInput("a lease lasts more than 0 and at most 3600 seconds")
        if not (replica.instance and replica.incarnation):
            raise InvalidInput("a replica has an instance name and an incarnation")
        now, role = self._clock(), replica.role
        rows = self._rows(role, now)
        runtime = self._runtimes.setdefault((role, replica.instance), _Runtime(incarnation=replica.incarnation))
        if replica.incarnation in runtime.deposed:
            return Holding(leases=(), live_instances=self._live(role, now), log_branch=self._log_branch())
        reborn = runtime.incarnation != replica.incarnation
        if reborn:
            runtime.deposed.append(runtime.incarnation)
        until = now + timedelta(seconds=lease_seconds)
        runtime.incarnation, runtime.address, runtime.leased_until = replica.incarnation, replica.address, until
        live = self._live(role, now)
        shares = share_out(rows, instance=replica.instance, reborn=reborn, live_instances=live)
        for shard, epoch in shares.held:
            self._shards[(role, shard)] = _Shard(epoch=epoch, instance=replica.instance, leased_until=until)
        for shard in shares.given_back:
            self._give_back(role, shard)
        held = {shard for shard, _ in shares.held}
        others = [
            one.leased_until - now
            for key, one in self._shards.items()
            if key[0] == role and one.instance not in ("", replica.instance) and one.leased_until > now
        ]
        return Holding(
            leases=tuple(lease for lease in await self.list_shards(role) if lease.shard in held),
            live_instances=live,
            log_branch=self._log_branch(),
            next_expiry_seconds=min(others).total_seconds() if others else 0.0,
        )

    async def release(self, replica: Replica) -> int:
        """Give everything back, unless a later incarnation has it already."""
        runtime = self._runtimes.get((replica.role, replica.instance))
        if runtime is None or runtime.incarnation != replica.incarnation:
            return 0
        runtime.leased_until = _NEVER
        own = [
            key for key, shard in self._shards.items() if key[0] == replica.role and shard.instance == replica.instance
        ]
        for role, shard in own:
            self._give_back(role, shard)
        return len(own)

    async def list_shards(self, role: str) -> Sequence[ShardLease]:
        """Every shard of a role with its owner."""
        now = self._clock()
        leases = []
        for (shard_role, number), shard in self._shards.items():
            if shard_role != role:
                continue
            alive = shard.leased_until > now
            leases.append(
                ShardLease(
                    role=role,
                    shard=number,
                    epoch=shard.epoch,
                    instance=shard.instance if alive else "",
                    address=self._runtimes[(role, shard.instance)].address if alive else "",
                    leased_until=shard.leased_until if alive else _NEVER,
                )
            )
        return leases

    def epoch(self, role: str, shard: int) -> int:
        """What a fence must name."""
        return self._shards[(role, shard)].epoch if (role, shard) in self._shards else 0

    def _log_branch(self) -> str:
        return f"in-memory.{self._restores}"

    def depose(self, role: str, instance: str, *, heir: str) -> None:
        """What a test does whose replica is to lose its shards unawares: another one has them now, in a new epoch."""
        for key, shard in self._shards.items():
            if key[0] == role and shard.instance == instance and (role, heir) in self._runtimes:
                self._shards[key] = _Shard(epoch=shard.epoch + 1, instance=heir, leased_until=shard.leased_until)

    def _rows(self, role: str, now: datetime) -> list[LeaseRow]:
        rows = [
            LeaseRow(shard=number, epoch=shard.epoch, instance=shard.instance, expired=shard.leased_until <= now)
            for (shard_role, number), shard in self._shards.items()
            if shard_role == role
        ]
        if not rows:
            raise InvalidInput(f"no shards are shared in the role {role!r}")
        return rows

    def _live(self, role: str, now: datetime) -> int:
        return sum(1 for key, one in self._runtimes.items() if key[0] == role and one.leased_until > now)

    def _give_back(self, role: str, shard: int) -> None:
        self._shards[(role, shard)] = _Shard(epoch=self._shards[(role, shard)].epoch)
