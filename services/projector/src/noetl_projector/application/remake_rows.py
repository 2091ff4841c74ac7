"""Makes executions again from the log whose rows were folded by other rules: aside, and unseen until they are whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Final

from noetl_core.errors import Corrupt, NoetlError, Unavailable
from noetl_core.fold import State, empty
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.projection_store import ProjectedExecution, ProjectionStore, StoredProjection
from noetl_core.upcasting.registry import Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_core.values import dataclass, replace
from noetl_servicekit.logging import get_logger

from noetl_projector.application.advance import Advance, Wanted
from noetl_projector.application.fold_events import Folded
from noetl_projector.application.read_missing import ReadMissing
from noetl_projector.application.store_rows import StoreRows
from noetl_projector.application.troubles import Troubles
from noetl_projector.telemetry import ProjectorMetrics

logger = get_logger()

SHORT_EVENTS: Final = 5_000
"""What has more has a lane of its own: after an upgrade the many short ones do not wait for it."""
FIRST_PAUSE_SECONDS: Final = 3.0
LONGEST_PAUSE_SECONDS: Final = 300.0
"""Before one that failed is tried again; twice as long each time."""
LOOK_SECONDS: Final = 1.0


class Remade(StrEnum):
    """What is stored cannot be folded on."""

    FORMAT = "format"
    """Another release wrote the state in another form."""
    REGISTRY = "registry"
    """Old events were read by other upcasters, or nobody knows by which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    shard: int
    row_version: int
    """Of the row that stands until the new one is beyond it."""
    target: int
    reason: Remade
    failures: int = 0
    not_before: float = 0.0

    @property
    def is_long(self) -> bool:
        return self.row_version > SHORT_EVENTS


class _Unfoldable(Corrupt):
    def __init__(self, folded: Folded) -> None:
        super().__init__(folded.failure)
        self.version = folded.failed_version


class RemakeRows:
    """One at a time in each lane. Batches leave alone what waits here, and go on with it when it is made."""

    def __init__(
        self,
        store: ProjectionStore,
        log: EventLog,
        rows: StoreRows,
        *,
        troubles: Troubles,
        metrics: ProjectorMetrics,
        upcasters: Upcasters = UPCASTERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store`: with connections of its own, since one of them is in use for as long as a history takes."""
        self._store = store
        self._log = log
        self._rows = rows
        self._troubles = troubles
        self._metrics = metrics
        self._upcasters = upcasters
        self._clock = clock
        self._due: dict[int, _Due] = {}
        self._wake = {is_long: asyncio.Event() for is_long in (False, True)}

    def __contains__(self, execution_id: int) -> bool:
        return execution_id in self._due

    def needed(self, row: StoredProjection) -> Remade | None:
        """Why a row is not folded on: what follows would be read by other rules than what is in it."""
        if row.upcasters != self._upcasters.digest:
            return Remade.REGISTRY
        return Remade.FORMAT if row.state is None else None

    def want(self, execution_id: int, *, shard: int, row_version: int, target: int, reason: Remade) -> None:
        """Its row is to be replaced by one that includes `target`, which is beyond it."""
        due = _Due(shard=shard, row_version=row_version, target=target, reason=reason)
        self._due[execution_id] = due
        self._metrics.to_remake.set(len(self._due))
        self._wake[due.is_long].set()

    def moved(self, execution_id: int, target: int) -> None:
        """What waits here is to go further."""
        due = self._due[execution_id]
        self._due[execution_id] = replace(due, target=max(due.target, target))

    def forget_shards(self, shards: Collection[int]) -> None:
        """They are somebody else's."""
        for execution_id in [key for key, due in self._due.items() if due.shard in shards]:
            self._drop(execution_id)

    async def run(self, beat: Callable[[], None], *, is_long: bool) -> None:
        """Make what is due in one lane, for ever; what fails raises nothing, and is tried again later."""
        while True:
            beat()
            await self.make_due(beat, is_long=is_long)
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake[is_long].wait()
            except TimeoutError:
                continue

    async def make_due(self, beat: Callable[[], None] = lambda: None, *, is_long: bool) -> None:
        """All whose time has come, up to the first that fails: it may not be the only one that would.

        Those that were never tried come first.
        """
        self._wake[is_long].clear()
        for execution_id, due in sorted(self._due.items(), key=lambda item: item[1].not_before):
            if due.is_long is not is_long or due.not_before > self._clock() or execution_id not in self._due:
                continue
            beat()
            try:
                version = await self._make(execution_id, beat)
            except NoetlError as exc:
                self._failed(execution_id, exc)
                return
            self._drop(execution_id)
            self._troubles.settle(execution_id, version=version)

    async def _make(self, execution_id: int, beat: Callable[[], None]) -> int:
        """Rows of the whole history in one transaction, in steps, so that memory does not grow with it.

        Whoever looks meanwhile sees the old rows. Returns the version that is stored afterwards.
        """
        due = self._due[execution_id]
        one, row, folded = await self._step(self._store, execution_id, empty(execution_id))
        first = one
        async with self._store.together() as store:
            written = await store.write([replace(row, replaces=due.row_version)])
            while not written.refused and row.state.stream_version < one.target:
                beat()
                one, row, more = await self._step(store, execution_id, row.state)
                oldest = folded.oldest_ingest or more.oldest_ingest
                folded = replace(more, events=folded.events + more.events, oldest_ingest=oldest)
                written = await store.write([row])
                if written.refused:
                    raise Unavailable("a step of it was refused")
        version = self._rows.tell(first, row, folded, written)
        if not written.refused:
            self._metrics.remade.labels(str(due.reason)).inc()
            if due.is_long:
                logger.info(
                    "projector.made_again",
                    execution_id=str(execution_id),
                    shard=due.shard,
                    reason=str(due.reason),
                    version=version,
                    before=due.row_version,
                )
        return version

    async def _step(
        self, store: ProjectionStore, execution_id: int, base: State
    ) -> tuple[Advance, ProjectedExecution, Folded]:
        due = self._due.get(execution_id)
        if due is None:
            raise Unavailable("its shard has passed on")
        one = Advance(
            wanted=Wanted(execution_id=execution_id, shard=due.shard, target=due.target),
            base=base,
            fresh=(),
            upcasters=self._upcasters,
            known_version=due.row_version,
        )
        ((_, folded),) = await ReadMissing(self._log, store, self._metrics)([one])
        if folded.failure:
            raise _Unfoldable(folded)
        row = self._rows.row(one, folded)
        if row is None:
            raise Unavailable(f"the log could not be read beyond version {base.stream_version}")
        return one, row, folded

    def _failed(self, execution_id: int, exc: NoetlError) -> None:
        due = self._due.get(execution_id)
        if due is None:  # somebody else does it
            return
        self._metrics.errors.inc()
        pause = min(FIRST_PAUSE_SECONDS * 2**due.failures, LONGEST_PAUSE_SECONDS)
        self._due[execution_id] = replace(due, failures=due.failures + 1, not_before=self._clock() + pause)
        if exc.retryable:
            logger.warning(
                "projector.not_made_again",
                execution_id=str(execution_id),
                shard=due.shard,
                reason=exc.message,
                again_in_seconds=pause,
            )
            return
        self._metrics.projection_errors.labels(str(due.shard)).inc()
        version = exc.version if isinstance(exc, _Unfoldable) else due.row_version
        self._troubles.fail(execution_id, shard=due.shard, target=due.target, version=version, reason=exc.message)
        if self._troubles.is_quarantined(execution_id):
            self._drop(execution_id)

    def _drop(self, execution_id: int) -> None:
        self._due.pop(execution_id, None)
        self._metrics.to_remake.set(len(self._due))
