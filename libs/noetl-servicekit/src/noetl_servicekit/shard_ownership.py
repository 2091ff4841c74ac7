"""Which shards this process may write for: leases renewed as a heartbeat, and left before they can have expired."""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from noetl_core.errors import NoetlError
from noetl_core.ports.leases import Replica, ShardLease, ShardLeases

from noetl_servicekit.env import Env, SettingsInvalid
from noetl_servicekit.logging import get_logger
from noetl_servicekit.metrics import MetricSet

logger = get_logger()

RETRY_SECONDS: Final = 0.5
EXPIRY_MARGIN_SECONDS: Final = 0.05
"""After the end of a lease of somebody else, so that it is over when we ask for what it was about."""
UNUSED_SHARE: Final = 0.1
"""The end of a lease that is not used: two clocks do not run equally fast, and a write takes its time."""

Gained = Callable[[Mapping[int, int]], None]
Lost = Callable[[frozenset[int]], None]


class ShardCountMismatch(SettingsInvalid):
    """This process counts shards differently than the database; it would look for executions in the wrong place."""

    code = "shard.count_mismatch"

    def __init__(self, *, installed: int, told: int) -> None:
        super().__init__([f"this installation has {installed} shards, NOETL_SHARD_COUNT says {told}"])


async def check_shard_count(leases: ShardLeases, shard_count: int) -> None:
    """Refuse to work with another number of shards than the one that was fixed at installation."""
    installed = (await leases.installation()).shard_count
    if installed != shard_count:
        raise ShardCountMismatch(installed=installed, told=shard_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipSettings:
    """How shards are leased; the same for every role that owns some."""

    shard_count: int
    lease_seconds: float
    heartbeat_seconds: float

    @classmethod
    def read(cls, env: Env) -> "OwnershipSettings":
        """The caller checks `env`, together with everything else that it reads."""
        settings = cls(
            shard_count=env.integer("NOETL_SHARD_COUNT", default=64, minimum=1, maximum=4096),
            # Together half a minute: what a dead replica had is served again by then, whoever is slow to notice.
            lease_seconds=env.number("NOETL_SHARD_LEASE_SEC", default=24.0, minimum=0.5),
            heartbeat_seconds=env.number("NOETL_SHARD_HEARTBEAT_SEC", default=6.0, minimum=0.05),
        )
        env.require(
            settings.heartbeat_seconds * 2 <= settings.lease_seconds,
            "NOETL_SHARD_LEASE_SEC must be at least twice NOETL_SHARD_HEARTBEAT_SEC",
        )
        return settings


class ShardMetrics:
    """Who owns what, as this process sees it."""

    def __init__(self, metrics: MetricSet) -> None:
        self.owner = metrics.gauge(
            "noetl_shard_owner", "1 while the instance owns the shard in its role.", ("role", "shard", "instance")
        )
        self.hold_failures = metrics.counter(
            "noetl_shard_hold_failures_total", "Heartbeats that did not renew the leases.", ("role",)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a heartbeat changed; a shard that came back under another epoch is in both."""

    gained: Mapping[int, int]
    lost: frozenset[int]


class HeldShards:
    """Shards with their epochs, each until a moment of this process' own monotonic clock."""

    def __init__(self, *, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._usable_seconds = lease_seconds * (1 - UNUSED_SHARE)
        self._clock = clock
        self._held: dict[int, tuple[int, float]] = {}

    def accept(self, leases: Iterable[ShardLease], *, asked_at: float) -> Change:
        """Take over what was granted; it counts from before it was asked for, so never too long."""
        until = asked_at + self._usable_seconds
        before = {shard: epoch for shard, (epoch, _) in self._held.items()}
        after = {lease.shard: lease.epoch for lease in leases}
        self._held = {shard: (epoch, until) for shard, epoch in after.items()}
        return Change(
            gained={shard: epoch for shard, epoch in after.items() if before.get(shard) != epoch},
            lost=frozenset(shard for shard, epoch in before.items() if after.get(shard) != epoch),
        )

    def drop(self, shards: Iterable[int]) -> frozenset[int]:
        """Give up some; returns those that were held."""
        return frozenset(shard for shard in shards if self._held.pop(shard, None) is not None)

    def drop_all(self) -> frozenset[int]:
        """Give up everything."""
        return self.drop(list(self._held))

    def drop_expired(self) -> frozenset[int]:
        """Give up what may have passed to somebody else."""
        now = self._clock()
        return self.drop([shard for shard, (_, until) in self._held.items() if now >= until])

    def epoch(self, shard: int) -> int | None:
        """The epoch to write under, None when this process may not."""
        held = self._held.get(shard)
        return held[0] if held is not None and self._clock() < held[1] else None

    def epochs(self) -> dict[int, int]:
        """Every shard that may be written for at this moment."""
        now = self._clock()
        return {shard: epoch for shard, (epoch, until) in self._held.items() if now < until}

    def seconds_left(self) -> float:
        """Until the first of them may no longer be used; a lot when nothing is held."""
        now = self._clock()
        return min((until - now for _, until in self._held.values()), default=self._usable_seconds)


class ShardOwnership:
    """Runs as a loop; everybody else asks it for the epoch of a shard immediately before writing.

    `on_gained` and `on_lost` are called in the event loop and must return at once; what is lost is reported
    before what is gained.
    """

    def __init__(
        self,
        leases: ShardLeases,
        settings: OwnershipSettings,
        *,
        role: str,
        instance: str,
        address: str,
        metrics: ShardMetrics,
        on_gained: Gained = lambda gained: None,
        on_lost: Lost = lambda lost: None,
        incarnation: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases = leases
        self._settings = settings
        # Fresh in every process, so that a restarted one deposes its predecessor at once.
        self.replica: Final = Replica(
            role=role, instance=instance, incarnation=incarnation or secrets.token_hex(8), address=address
        )
        self._metrics = metrics
        self._on_gained = on_gained
        self._on_lost = on_lost
        self._clock = clock
        self._held = HeldShards(lease_seconds=settings.lease_seconds, clock=clock)
        self._early = asyncio.Event()
        self._checked = False
        self._next_expiry = math.inf
        """Seconds until the lease of a silent replica is over: what it had is taken then, not at a later heartbeat."""
        self.live_instances = 0
        self.log_branch = ""
        """Which continuation of the log our leases are from; empty until the first heartbeat."""

    def epoch(self, shard: int) -> int | None:
        """The epoch to write under, None when the shard is not ours, or may not be any more."""
        return self._held.epoch(shard)

    def epochs(self) -> dict[int, int]:
        """Every shard that is ours at this moment."""
        return self._held.epochs()

    def fenced(self, shard: int) -> None:
        """A write was refused because somebody else owns the shard: believe it, and ask again at once."""
        self._report_lost(self._held.drop([shard]))
        self._early.set()

    async def run(self, beat: Callable[[], None]) -> None:
        """Renew for ever; raises only when this process does not fit the installation."""
        while True:
            renewed = await self.renew()
            beat()
            await self._pause(min(self._settings.heartbeat_seconds, self._next_expiry) if renewed else RETRY_SECONDS)

    async def renew(self) -> bool:
        """One heartbeat; what cannot be renewed in time is given up."""
        self._report_lost(self._held.drop_expired())
        asked_at = self._clock()
        try:
            async with asyncio.timeout(min(self._held.seconds_left(), self._settings.lease_seconds / 2)):
                await self._check_installation()
                holding = await self._leases.hold(self.replica, lease_seconds=self._settings.lease_seconds)
        except (NoetlError, TimeoutError) as exc:
            if isinstance(exc, NoetlError) and not exc.retryable:
                self._report_lost(self._held.drop_all())
                raise
            self._metrics.hold_failures.labels(self.replica.role).inc()
            logger.warning("shards.hold_failed", role=self.replica.role, reason=str(exc) or "no answer in time")
            self._report_lost(self._held.drop_expired())
            return False
        self._follow_log(holding.log_branch)
        change = self._held.accept(holding.leases, asked_at=asked_at)
        self.live_instances = holding.live_instances
        self._next_expiry = (holding.next_expiry_seconds or math.inf) + EXPIRY_MARGIN_SECONDS
        self._report_lost(change.lost)
        self._report_gained(change.gained)
        return True

    async def release(self) -> None:
        """Give everything back, so that others need not wait; to be called after `run` has ended."""
        self._report_lost(self._held.drop_all())
        with suppress(NoetlError):  # whoever cannot be told will see the leases expire
            released = await self._leases.release(self.replica)
            logger.info("shards.released", role=self.replica.role, shards=released)

    def _follow_log(self, log_branch: str) -> None:
        """After a restore, what was learned before may be of events that are gone: every shard begins anew."""
        if self.log_branch and log_branch and log_branch != self.log_branch:
            logger.warning("shards.log_changed", role=self.replica.role, before=self.log_branch, now=log_branch)
            self._report_lost(self._held.drop_all())
        self.log_branch = log_branch or self.log_branch

    async def _check_installation(self) -> None:
        if not self._checked:
            await check_shard_count(self._leases, self._settings.shard_count)
            self._checked = True

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(min(seconds, self._held.seconds_left()), 0.0)):
                await self._early.wait()
        self._early.clear()
        self._report_lost(self._held.drop_expired())

    def _report_gained(self, gained: Mapping[int, int]) -> None:
        if gained:
            for shard in gained:
                self._metrics.owner.labels(self.replica.role, str(shard), self.replica.instance).set(1)
            logger.info("shards.gained", role=self.replica.role, shards=sorted(gained))
            self._on_gained(gained)

    def _report_lost(self, lost: frozenset[int]) -> None:
        if lost:
            for shard in lost:
                self._metrics.owner.labels(self.replica.role, str(shard), self.replica.instance).set(0)
            logger.info("shards.lost", role=self.replica.role, shards=sorted(lost))
            self._on_lost(lost)
