"""Answers queries over projections; who asks for a version that is not there yet waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from noetl_core.errors import DeadlinePassed, NotFound
from noetl_core.ports.deadlines import LateExecution, LatePlace
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import LivePage, RowPage, RowPlace
from noetl_core.ports.projection_store import ProjectionStore, SilentPlace
from noetl_core.ports.projections import ExecutionPage, ExecutionView, SilentCommand
from noetl_core.ports.quiet import QuietExecution
from noetl_core.sharding import shard_of

from noetl_projector.application.troubles import SetsAside
from noetl_projector.application.version_signals import VersionSignals

OWN_LOOK_SECONDS: Final = 1.0
"""How long to rely on the signal; the shard may have passed to another replica in the meantime."""
FOREIGN_LOOK_SECONDS: Final = 0.05
"""Another replica writes the row, and nothing but the row tells us that it has."""

MAX_ROWS: Final = 2_000
"""Of one page."""


class AnswerQueries:
    """Any replica answers for all shards; port `Projections`."""

    def __init__(
        self,
        store: ProjectionStore,
        *,
        signals: VersionSignals,
        troubles: SetsAside,
        shard_count: int,
        owns: Callable[[int], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._signals = signals
        self._troubles = troubles
        self._shard_count = shard_count
        self._owns = owns
        self._clock = clock

    async def get_execution(
        self, scope: Scope | None, execution_id: int, *, min_version: int = 0, wait_seconds: float = 0.0
    ) -> ExecutionView:
        """One row; raises `DeadlinePassed` if it does not include `min_version` in time."""
        deadline = self._clock() + wait_seconds
        while True:
            with self._signals.listen(execution_id) as moved:
                view = await self._store.find_execution(scope, execution_id)
                if view is not None and view.stream_version >= min_version:
                    return view
                left = deadline - self._clock()
                if min_version == 0 or left <= 0 or self._troubles.is_quarantined(execution_id):
                    break
                owned = self._owns(shard_of(execution_id, self._shard_count))
                await moved.wait(timeout_seconds=min(left, OWN_LOOK_SECONDS if owned else FOREIGN_LOOK_SECONDS))
        if view is None:
            raise NotFound("execution", execution_id, code="execution.not_found")
        raise DeadlinePassed(f"execution {execution_id} is at version {view.stream_version}, not yet at {min_version}")

    async def list_rows(
        self,
        scope: Scope | None,
        wanted: Mapping[int, int],
        *,
        after: RowPlace | None = None,
        wait_seconds: float = 0.0,
    ) -> RowPage:
        """Rows as they are stored; on the first page, once they include what is waited for or the time is over."""
        if after is None and wait_seconds > 0:
            await self._wait_for(scope, wanted, self._clock() + wait_seconds)
        page = await self._store.list_rows(scope, wanted.keys(), after=after, limit=MAX_ROWS)
        return replace(page, shard_count=self._shard_count)

    async def _wait_for(self, scope: Scope | None, wanted: Mapping[int, int], deadline: float) -> None:
        known = await self._store.versions(wanted.keys())
        for execution_id, version in wanted.items():
            if known.get(execution_id, 0) < version:
                with suppress(NotFound, DeadlinePassed):
                    await self.get_execution(
                        scope, execution_id, min_version=version, wait_seconds=max(deadline - self._clock(), 0.0)
                    )

    async def list_live(self, scope: Scope | None, *, after: int = 0, limit: int = 1000) -> LivePage:
        """Executions that have a row, by their ids; no scope means any tenant's."""
        return await self._store.list_live(scope, after=after, limit=limit)

    async def list_executions(
        self,
        scope: Scope,
        *,
        status: str = "",
        path: str = "",
        parent_execution_id: int | None = None,
        page_size: int = 50,
        page_token: str = "",
    ) -> ExecutionPage:
        """Executions of a tenant and organization, newest first."""
        return await self._store.list_executions(
            scope,
            status=status,
            path=path,
            parent_execution_id=parent_execution_id,
            page_size=page_size,
            page_token=page_token,
        )

    async def silent_commands(self, *, limit: int = 100, after: SilentPlace | None = None) -> tuple[SilentCommand, ...]:
        """Claimed commands whose lease is over, longest silent first."""
        return await self._store.silent_commands(limit=limit, after=after)

    async def passed_deadlines(self, *, limit: int = 100, after: LatePlace | None = None) -> tuple[LateExecution, ...]:
        """Executions whose next deadline has passed, longest overdue first."""
        return await self._store.passed_deadlines(limit=limit, after=after)

    async def quiet_executions(
        self, *, quiet_seconds: float, limit: int = 100, after: int = 0
    ) -> tuple[QuietExecution, ...]:
        """Executions in which nothing has happened for a while, oldest first."""
        return await self._store.quiet_executions(quiet_seconds=quiet_seconds, limit=limit, after=after)
