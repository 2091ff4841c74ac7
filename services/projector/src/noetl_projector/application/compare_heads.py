"""Nobody trusts delivery: heads that moved are compared with the rows, and what is missing is read from the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from noetl_core.ports.event_log import EventLog, HeadPage, MovedHead
from noetl_core.ports.projection_store import ProjectionStore
from noetl_servicekit.logging import get_logger

from noetl_projector.application.advance import Wanted
from noetl_projector.application.checkpoints import Checkpoints
from noetl_projector.application.known_states import KnownStates
from noetl_projector.application.project_batch import ProjectBatch
from noetl_projector.application.troubles import Troubles

logger = get_logger()

HEADS_PAGE: Final = 1000
EXECUTIONS_A_BATCH: Final = 50
BATCHES_A_TURN: Final = 3
"""For one long history, before everything else has its turn."""
OVERLAP: Final = timedelta(seconds=15)
"""Transactions last at most 5 s, so no head that committed late can hide behind this."""
QUICK_OVERLAP: Final = timedelta(seconds=1)
"""For glances, which need not see everything."""
GRACE: Final = timedelta(seconds=1)
"""While the bus answers, what moved just now is probably on its way."""


class CompareHeads:
    """Finds every execution that moved without this projector noticing, and brings its row up to the head."""

    def __init__(
        self,
        log: EventLog,
        store: ProjectionStore,
        project: ProjectBatch,
        *,
        owned: Callable[[], Collection[int]],
        known: KnownStates,
        troubles: Troubles,
        checkpoints: Checkpoints,
    ) -> None:
        self._log = log
        self._store = store
        self._project = project
        self._owned = owned
        self._known = known
        self._troubles = troubles
        self._checkpoints = checkpoints
        self._compared_to: dict[int, datetime] = {}
        self._glanced_to: datetime | None = None
        self._unfinished: dict[int, Wanted] = {}
        """Long histories that are on their way; they are among the troubles too, should this be lost."""
        self._stuck: dict[int, tuple[int, datetime]] = {}
        """Since when an execution in trouble has been behind: the next owner has to look at it again."""
        self._lost: set[int] = set()
        """Shards that were somebody else's at some time during this comparison, which passed over what they had."""
        self._on_their_way: dict[int, int] = {}
        """Versions that the bus was left to bring when heads were compared before, by execution."""

    def forget_shards(self, shards: Collection[int]) -> None:
        """They are somebody else's; should they come back, they are taken over anew."""
        self._lost.update(shards)
        for shard in shards:
            self._compared_to.pop(shard, None)

    @property
    def has_gained(self) -> bool:
        """Whether there are shards that have not been taken over yet."""
        return not self._compared_to.keys() >= set(self._owned())

    @property
    def has_more(self) -> bool:
        """Whether there are long histories to go on with, for which nobody need wait."""
        return bool(self._unfinished)

    async def go_on(self, *, beat: Callable[[], None] = lambda: None) -> None:
        """A turn for some of the long histories; those whose turn was longest ago come first."""
        together = list(self._unfinished.values())[:EXECUTIONS_A_BATCH]
        for one in together:
            del self._unfinished[one.execution_id]
        await self._bring_up(together, await self._versions([one.execution_id for one in together]), beat)

    async def __call__(self, *, bus_is_away: bool = False, beat: Callable[[], None] = lambda: None) -> None:
        """Compare once; raises while api or the database is away, and then the next time starts where this one did."""
        await self._retry(beat)
        owned = frozenset(self._owned())
        gained = owned - self._compared_to.keys()
        if gained:
            await self._take_over(gained, beat)
        settled = owned & self._compared_to.keys() - gained
        if settled:
            since = min(self._compared_to[shard] for shard in settled) - OVERLAP
            await self._compare(settled, since=since, grace=timedelta() if bus_is_away else GRACE, beat=beat)

    async def glance(self, *, beat: Callable[[], None] = lambda: None) -> None:
        """Look only at what moved a moment ago: cheap enough to be done often, and made good by the next comparison."""
        settled = frozenset(self._owned()) & self._compared_to.keys()
        if not settled:
            return
        compared_to = min(self._compared_to[shard] for shard in settled)
        since = max(compared_to, self._glanced_to or compared_to) - QUICK_OVERLAP
        began: datetime | None = None
        async for page in self._moved(settled, since):
            began = began or page.now
            await self._catch_up(page.heads, beat)
        self._glanced_to = began

    async def _retry(self, beat: Callable[[], None]) -> None:
        retry = [
            Wanted(execution_id=execution_id, shard=trouble.shard, target=trouble.target)
            for execution_id, trouble in self._troubles.to_retry().items()
            if execution_id not in self._unfinished
        ]
        for start in range(0, len(retry), EXECUTIONS_A_BATCH):
            together = retry[start : start + EXECUTIONS_A_BATCH]
            await self._bring_up(together, await self._versions([one.execution_id for one in together]), beat)

    async def _take_over(self, gained: frozenset[int], beat: Callable[[], None]) -> None:
        """Begin where the last owner of each shard left off; a shard that nobody ever compared is compared whole."""
        marks = await self._checkpoints.marks(gained)
        moved = 0
        if fresh := gained - marks.keys():
            moved += await self._compare(fresh, since=None, grace=timedelta(), beat=beat)
        if marks:
            since = min(marks.values()) - OVERLAP
            moved += await self._compare(frozenset(marks), since=since, grace=timedelta(), beat=beat)
        logger.info("projector.caught_up", shards=len(gained), executions=moved)

    async def _compare(
        self, shards: frozenset[int], *, since: datetime | None, grace: timedelta, beat: Callable[[], None]
    ) -> int:
        """Bring all that moved since a time up to their heads; returns how many were behind."""
        began: datetime | None = None
        behind = 0
        self._lost.clear()
        on_their_way: dict[int, int] = {}
        async for page in self._moved(shards, since):
            began = began or page.now
            moving = [head for head in page.heads if head.updated_at > page.now - grace]
            on_their_way.update((head.execution_id, head.version) for head in moving)
            due = [head for head in page.heads if head.updated_at <= page.now - grace]
            behind += await self._catch_up([*due, *await self._overdue(moving)], beat)
            for head in page.heads:
                if head.execution_id in self._troubles:
                    self._stuck.setdefault(head.execution_id, (head.shard, head.updated_at))
        if grace:
            self._on_their_way = on_their_way
        if began is not None:
            self._note(shards, began)
        return behind

    async def _overdue(self, moving: Sequence[MovedHead]) -> list[MovedHead]:
        """Those that move all the time, and of which nobody has brought what was on its way a comparison ago."""
        waited_for = [head for head in moving if head.execution_id in self._on_their_way]
        versions = await self._versions([head.execution_id for head in waited_for])
        return [head for head in waited_for if versions[head.execution_id] < self._on_their_way[head.execution_id]]

    async def _moved(self, shards: frozenset[int], since: datetime | None) -> AsyncIterator[HeadPage]:
        after: tuple[datetime, int] | None = None
        while True:
            page = await self._log.moved_heads(
                sorted(shards), moved_since=since, after=after, open_only=False, limit=HEADS_PAGE
            )
            yield page
            if not page.more:
                return
            after = (page.heads[-1].updated_at, page.heads[-1].execution_id)

    async def _catch_up(self, heads: Sequence[MovedHead], beat: Callable[[], None]) -> int:
        versions = await self._versions([head.execution_id for head in heads])
        behind = [
            Wanted(execution_id=head.execution_id, shard=head.shard, target=head.version)
            for head in heads
            if versions[head.execution_id] < head.version
        ]
        for start in range(0, len(behind), EXECUTIONS_A_BATCH):
            await self._bring_up(behind[start : start + EXECUTIONS_A_BATCH], versions, beat)
        return len(behind)

    async def _bring_up(self, wanted: Sequence[Wanted], versions: dict[int, int], beat: Callable[[], None]) -> None:
        """A long history takes several batches and turns; whoever makes no progress is among the troubles by then."""
        for _ in range(BATCHES_A_TURN):
            if not wanted:
                return
            beat()
            reached = await self._project(wanted)
            wanted = [
                one for one in wanted if versions[one.execution_id] < reached.get(one.execution_id, 0) < one.target
            ]
            versions.update(reached)
        self._unfinished.update({one.execution_id: one for one in wanted})

    async def _versions(self, execution_ids: Sequence[int]) -> dict[int, int]:
        """Those of the rows; 0 where there is none."""
        known = {one: self._known.version(one) for one in execution_ids}
        unknown = [execution_id for execution_id, version in known.items() if version is None]
        stored = await self._store.versions(unknown) if unknown else {}
        return {key: version or stored.get(key, 0) for key, version in known.items()}

    def _note(self, shards: frozenset[int], compared_to: datetime) -> None:
        self._stuck = {key: since for key, since in self._stuck.items() if key in self._troubles}
        still_owned = shards & frozenset(self._owned()) - self._lost
        marks = dict.fromkeys(still_owned, compared_to)
        self._compared_to.update(marks)
        for shard, since in self._stuck.values():
            if shard in marks:
                marks[shard] = min(marks[shard], since)
        self._checkpoints.caught_up(marks)
