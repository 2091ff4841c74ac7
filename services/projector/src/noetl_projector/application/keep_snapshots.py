"""Makes snapshots of long histories: replays what the log has, from the last one that can be proven."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from noetl_core.errors import Corrupt, NoetlError, TooLargeToReplay
from noetl_core.fold import State
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.snapshot_store import SnapshotStore
from noetl_core.replay.history import Replay, Seed
from noetl_core.replay.sizes import MOST_IN_ONE_PIECE, Size
from noetl_core.replay.snapshots import Rules, open_snapshot, positions_to_keep, take_snapshot
from noetl_servicekit.logging import get_logger

from noetl_projector.telemetry import ProjectorMetrics

logger = get_logger()

READ_PAGE: Final = 500
AT_ONCE: Final = 20
"""Events between two moments in which rows and queries have their turn."""
MAX_REMEMBERED: Final = 10_000


class KeepSnapshots:
    """One at a time, of executions that have come past a multiple of the interval since the last one.

    Live rows have no part in it: what they get wrong must not become what replays say.
    """

    def __init__(
        self,
        log: EventLog,
        store: SnapshotStore,
        rules: Rules,
        *,
        owns: Callable[[int], bool],
        metrics: ProjectorMetrics,
        interval: int,
        most: Size = MOST_IN_ONE_PIECE,
        aside: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._log = log
        self._store = store
        self._rules = rules
        self._owns = owns
        self._metrics = metrics
        self._interval = interval
        self._most = most
        self._aside = aside
        self._due: dict[int, tuple[int, int]] = {}
        """Shard and position, by execution."""
        self._done: OrderedDict[int, int] = OrderedDict()
        """Positions up to which nothing is to be done, of executions that moved lately."""
        self._wake = asyncio.Event()

    def moved(self, state: State, *, shard: int) -> None:
        """Rows of an execution were written up to this state."""
        position = state.stream_version // self._interval * self._interval
        execution_id = state.execution.execution_id
        if position and position > self._done.get(execution_id, 0):
            self._due[execution_id] = (shard, position)
            self._wake.set()

    async def run(self, beat: Callable[[], None], *, look_seconds: float = 5.0) -> None:
        """Make them for ever; raises while the log or the store is away."""
        while True:
            beat()
            try:
                async with asyncio.timeout(look_seconds):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await self.make_due(beat)

    async def make_due(self, beat: Callable[[], None] = lambda: None) -> None:
        """All that are due."""
        self._wake.clear()
        for execution_id, (shard, position) in list(self._due.items()):
            if self._owns(shard):
                try:
                    await self._make(execution_id, position, beat)
                except NoetlError as exc:
                    if exc.retryable:
                        self._wake.set()
                        raise
                    logger.warning(
                        "projector.snapshot_failed",
                        execution_id=str(execution_id),
                        position=position,
                        reason=exc.message,
                    )
            if self._due.get(execution_id) == (shard, position):
                del self._due[execution_id]
            self._done[execution_id] = position
            self._done.move_to_end(execution_id)
            if len(self._done) > MAX_REMEMBERED:
                self._done.popitem(last=False)

    async def _make(self, execution_id: int, position: int, beat: Callable[[], None]) -> None:
        seed = await self._seed(execution_id, position)
        if seed is not None and seed.state.stream_version == position:
            return
        replay = Replay(execution_id, seed=seed)
        while replay.version < position:
            beat()
            page = await self._log.read(
                None, execution_id, from_version=replay.version + 1, to_version=position, limit=READ_PAGE
            )
            before = replay.version
            for first in range(0, len(page.events), AT_ONCE):
                replay.take(page.events[first : first + AT_ONCE])
                await asyncio.sleep(0)
            if replay.version == before:  # later ones, if there are any, would be read for ever
                raise Corrupt(f"execution {execution_id} has no event at version {before + 1}")
            if what := replay.size.beyond(self._most):  # not replayed in one piece anywhere: nobody would begin with it
                raise TooLargeToReplay(f"it has {what}", version=str(replay.version))
        snapshot, parts = await self._aside(take_snapshot, replay.result(), code_version=self._rules.code_version)
        known = await self._store.positions(execution_id, rules=self._rules)
        keep = positions_to_keep([*known, position], interval=self._interval)
        if await self._store.write(snapshot, parts, keep=keep):
            self._metrics.snapshots.inc()

    async def _seed(self, execution_id: int, position: int) -> Seed | None:
        """What the next one may begin with; one that is not what it says is dropped on the way."""
        snapshot = await self._store.find(None, execution_id, at_or_below=position, rules=self._rules)
        if snapshot is None:
            return None
        parts = [part for number in range(snapshot.parts) if (part := await self._store.part(snapshot, number))]
        try:
            seed: Seed = await self._aside(open_snapshot, snapshot, parts, execution_id=execution_id, rules=self._rules)
            at = snapshot.position
            page = await self._log.read(None, execution_id, from_version=at, to_version=at, limit=1)
            if not page.events or page.events[0].checksum != seed.checksum:
                raise Corrupt("the log has another event at its position")
        except Corrupt as exc:
            logger.warning(
                "projector.snapshot_refused",
                execution_id=str(execution_id),
                position=snapshot.position,
                reason=exc.message,
            )
            await self._store.drop(snapshot)
            return None
        return seed
