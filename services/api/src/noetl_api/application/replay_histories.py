"""Replays histories from the log, a few at a time, and keeps the last ones for whoever asks for the next page."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from noetl_core.errors import Corrupt, NoetlError, Overloaded, TooLargeToReplay
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.snapshots import Snapshots
from noetl_core.replay.history import Replay, Replayed, Seed
from noetl_core.replay.sizes import MOST_IN_ONE_PIECE, Size
from noetl_core.surfaces.checksums import SurfaceChecksum, in_order, total_checksum
from noetl_core.surfaces.shapes import Surface
from noetl_servicekit.logging import get_logger

from noetl_api.telemetry import ReplayMetrics

logger = get_logger()

READ_PAGE: Final = 500
AT_ONCE: Final = 50
"""Events or rows between two moments in which others have their turn."""
MOST_KEPT: Final = Size(rows=200_000, payloads=200_000, attribute_bytes=32 * 1024 * 1024)
CONCURRENT: Final = 2
MAX_WAITING: Final = 32

_Key = tuple[int, int, bool]
"""Execution, version, and whether every event was to be folded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownReplay:
    """A replay that is done, with everything that pages are made of."""

    replayed: Replayed
    order: Mapping[Surface, list[str]]
    checksums: Mapping[str, str]
    checksum: str
    addresses: list[str]
    """Of payloads."""
    payload_root: str
    payload_count: int
    snapshot_version: int
    snapshot_checksum: str
    """Of the snapshot that it began with; empty if it began at the start."""


class ReplayHistories:
    """What was replayed to a version stays so, as long as the log has the same event there."""

    def __init__(
        self, log: EventLog, snapshots: Snapshots, *, metrics: ReplayMetrics, most: Size = MOST_IN_ONE_PIECE
    ) -> None:
        self._log = log
        self._snapshots = snapshots
        self._metrics = metrics
        self._most = most
        self._kept: OrderedDict[_Key, KnownReplay] = OrderedDict()
        self._turns = asyncio.Semaphore(CONCURRENT)
        self._waiting = 0

    async def __call__(
        self,
        scope: Scope | None,
        execution_id: int,
        version: int,
        *,
        from_start: bool = False,
        look_again: bool = False,
    ) -> KnownReplay:
        """The history up to a version, which the caller knows to be there and to be his.

        Who looks again takes no replay of every event from memory, and no other whose snapshot is not the newest
        that can be opened. Who asks for the next page of what he has seen need not look.
        """
        key = (execution_id, version, from_start)
        known = await self._find(scope, key)
        if known is not None and not look_again:
            return known
        if self._waiting >= MAX_WAITING:
            raise Overloaded("too many replays are waiting for their turn")
        self._waiting += 1
        try:
            async with self._turns:
                found = self._kept.get(key)
                if found is not None and found is not known:  # somebody asked for the same, and got it meanwhile
                    return found
                if from_start:
                    return self._keep(key, await self._replay(scope, execution_id, version, None))
                seed = await self._seed(scope, execution_id, version)
                if known is not None and known.snapshot_checksum == (seed.snapshot_checksum if seed else ""):
                    return known
                return self._keep(key, await self._replayed(scope, execution_id, version, seed, known))
        finally:
            self._waiting -= 1

    async def _find(self, scope: Scope | None, key: _Key) -> KnownReplay | None:
        """What was replayed before; dropped if the log has another event by now, as after a failover that lost some."""
        known = self._kept.get(key)
        if known is None:
            return None
        execution_id, version, _ = key
        is_of_this_log = await self._has(scope, execution_id, version, known.replayed.checksum)
        if self._kept.get(key) is known:
            if is_of_this_log:
                self._kept.move_to_end(key)
            else:
                del self._kept[key]
        return known if is_of_this_log else None

    async def _has(self, scope: Scope | None, execution_id: int, version: int, checksum: str) -> bool:
        """Whether this is the log's event at a version, which seals everything before it."""
        page = await self._log.read(scope, execution_id, from_version=version, to_version=version, limit=1)
        return bool(page.events) and page.events[0].checksum == checksum

    def _keep(self, key: _Key, known: KnownReplay) -> KnownReplay:
        self._kept[key] = known
        while len(self._kept) > 1 and self._kept_size().beyond(MOST_KEPT):
            self._kept.popitem(last=False)
        return known

    def _kept_size(self) -> Size:
        sizes = [known.replayed.size for known in self._kept.values()]
        return Size(
            rows=sum(size.rows for size in sizes),
            payloads=sum(size.payloads for size in sizes),
            attribute_bytes=sum(size.attribute_bytes for size in sizes),
        )

    async def _replayed(
        self, scope: Scope | None, execution_id: int, version: int, seed: Seed | None, known: KnownReplay | None
    ) -> KnownReplay:
        if seed is not None:
            try:
                return await self._replay(scope, execution_id, version, seed)
            except NoetlError as exc:
                if exc.retryable or isinstance(exc, TooLargeToReplay):
                    raise
                self._refuse(execution_id, seed, exc.message)
            except Exception as exc:  # A snapshot is nothing that an answer may depend on, also when it is nonsense.
                self._refuse(execution_id, seed, repr(exc))
        if known is not None and not known.snapshot_version:
            return known
        return await self._replay(scope, execution_id, version, None)

    async def _seed(self, scope: Scope | None, execution_id: int, version: int) -> Seed | None:
        """A snapshot whose last event is the log's own; one that is of another log seals another history."""
        seed = await self._snapshots.seed(scope, execution_id, at_or_below=version)
        if seed is None:
            return None
        if await self._has(scope, execution_id, seed.state.stream_version, seed.checksum):
            return seed
        self._refuse(execution_id, seed, "the log has another event at its position")
        return None

    def _refuse(self, execution_id: int, seed: Seed, reason: str) -> None:
        self._metrics.refused_snapshots.labels("unfit").inc()
        logger.warning(
            "replay.snapshot_refused",
            execution_id=str(execution_id),
            position=seed.state.stream_version,
            reason=reason,
        )

    async def _replay(self, scope: Scope | None, execution_id: int, version: int, seed: Seed | None) -> KnownReplay:
        replay = Replay(execution_id, seed=seed)
        begun = replay.version
        self._check_size(execution_id, replay)
        while replay.version < version:
            page = await self._log.read(
                scope, execution_id, from_version=replay.version + 1, to_version=version, limit=READ_PAGE
            )
            before = replay.version
            for first in range(0, len(page.events), AT_ONCE):
                replay.take(page.events[first : first + AT_ONCE])
                await asyncio.sleep(0)
            if replay.version == before:  # later ones, if there are any, would be read for ever
                raise Corrupt(f"execution {execution_id} has no event at version {before + 1}")
            self._check_size(execution_id, replay)
        self._metrics.events.inc(version - begun)
        self._metrics.replays.labels("snapshot" if begun else "start").inc()
        return await _known(replay.result(), begun, seed.snapshot_checksum if seed else "")

    def _check_size(self, execution_id: int, replay: Replay) -> None:
        if what := replay.size.beyond(self._most):
            raise TooLargeToReplay(
                f"execution {execution_id} has {what} at version {replay.version}: "
                "replay it to an earlier point, or verify it as a job",
                version=str(replay.version),
            )


async def _known(replayed: Replayed, snapshot_version: int, snapshot_checksum: str) -> KnownReplay:
    order = {surface: in_order(replayed.rows[surface]) for surface in Surface}
    checksums: dict[str, str] = {}
    for surface, keys in order.items():
        checksum = SurfaceChecksum()
        for place, key in enumerate(keys):
            checksum.add(key, replayed.rows[surface][key])
            if place % AT_ONCE == 0:
                await asyncio.sleep(0)
        checksums[str(surface)] = checksum.hexdigest()
    return KnownReplay(
        replayed=replayed,
        order=order,
        checksums=checksums,
        checksum=total_checksum(checksums),
        addresses=list(replayed.payloads.by_address()),
        payload_root=replayed.payloads.root(),
        payload_count=len(replayed.payloads),
        snapshot_version=snapshot_version,
        snapshot_checksum=snapshot_checksum,
    )
