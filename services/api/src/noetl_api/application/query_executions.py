"""Shows executions from their projection, and from the log where the projection has not caught up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from noetl_core.errors import Corrupt, DeadlinePassed, InvalidInput, NoetlError, NotFound, Unavailable
from noetl_core.execution_view import execution_view
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State, empty, fold, prune
from noetl_core.ports.event_log import EventLog, EventPage, Scope
from noetl_core.ports.projections import ExecutionPage, ExecutionView, Projections
from noetl_core.recorded import record
from noetl_core.state_json import read_state
from noetl_core.upcasting.releases import UPCASTERS
from noetl_servicekit.callers import Caller

from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.page_sizes import page_size
from noetl_api.application.scopes import acting_scope, visible_scope
from noetl_api.telemetry import ApiMetrics

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 1000
FOLD_PAGE: Final = 1000
MAX_FOLDED_EVENTS: Final = 20_000
"""More than this is the projector's work: the answer would come too late, and everybody would wait for it."""

MAX_WAIT_SECONDS: Final = 5.0


class QueryExecutions:
    """A client that has just started an execution sees it, and nothing that it saw ever goes back."""

    def __init__(
        self,
        *,
        projections: Projections,
        log: EventLog,
        signal: CommitSignal,
        metrics: ApiMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._projections = projections
        self._clock = clock
        self._log = log
        self._signal = signal
        self._metrics = metrics

    async def get(
        self, caller: Caller, scope: Scope | None, execution_id: int, *, min_version: int = 0
    ) -> ExecutionView:
        """One execution as of its head, or of `min_version` if that is later."""
        visible = visible_scope(caller, scope)
        if not min_version:
            return await self._current(visible, execution_id)
        deadline = self._clock() + MAX_WAIT_SECONDS
        with self._signal.watching(execution_id) as watcher:
            while True:
                view = await self._current(visible, execution_id)
                if view.stream_version >= min_version:
                    return view
                seconds = deadline - self._clock()
                if seconds <= 0:
                    raise DeadlinePassed(
                        f"execution {execution_id} is at version {view.stream_version}, not yet at {min_version}"
                    )
                await watcher.wait_beyond(view.stream_version, seconds=seconds)

    async def list(
        self,
        caller: Caller,
        scope: Scope | None,
        *,
        status: str = "",
        path: str = "",
        parent_execution_id: int | None = None,
        size: int = 0,
        token: str = "",
    ) -> ExecutionPage:
        """Executions as projected, newest first."""
        if status and status not in set(ExecutionStatus):
            raise InvalidInput(f"{status!r} is no status; there are {', '.join(ExecutionStatus)}")
        return await self._projections.list_executions(
            acting_scope(caller, scope),
            status=status,
            path=path,
            parent_execution_id=parent_execution_id,
            page_size=page_size(size, default=DEFAULT_PAGE, maximum=MAX_PAGE),
            page_token=token,
        )

    async def _current(self, scope: Scope | None, execution_id: int) -> ExecutionView:
        view, head = await self._row_and_head(scope, execution_id)
        if view is not None and ExecutionStatus(view.status).is_final:
            self._metrics.query_source.labels("projection").inc()
            return view
        if isinstance(head, NoetlError):
            raise head
        known = view.stream_version if view is not None else 0
        if view is not None and head <= known:
            self._metrics.query_source.labels("projection").inc()
            return view
        state = _state_of(view, execution_id)
        page = await self._since(scope, execution_id, state.stream_version, head)
        if page.head_version - state.stream_version > MAX_FOLDED_EVENTS:
            if view is not None:
                return view
            raise Unavailable(f"execution {execution_id} has a long history that is not projected yet")
        while page.events:
            for event in page.events:
                state = fold(state, record(event))
            state = prune(state)  # after each page, since every fold copies the commands that are kept
            if state.stream_version >= page.head_version:
                break
            page = await self._log.read(scope, execution_id, from_version=state.stream_version + 1, limit=FOLD_PAGE)
        return execution_view(state)

    async def _row_and_head(
        self, scope: Scope | None, execution_id: int
    ) -> tuple[ExecutionView | None, int | NoetlError]:
        """Both at once: a row that is as new as the head was when it was asked for needs no second look at the log.

        The row is waited for by the call itself. As a task it would wait for its turn on a busy loop twice more, before
        it asks and before it is heard; the head is mostly there first.
        """
        heading = asyncio.create_task(self._head(scope, execution_id))
        try:
            return await self._projected(scope, execution_id), await heading
        finally:
            heading.cancel()

    async def _since(self, scope: Scope | None, execution_id: int, known: int, head: int) -> EventPage:
        """What follows on a version, from memory if that goes as far as the log did."""
        recent = self._signal.recent.page(scope, execution_id, known + 1)
        if recent is not None and recent.head_version >= head:
            self._metrics.query_source.labels("memory").inc()
            return recent
        self._metrics.query_source.labels("log").inc()
        return await self._log.read(scope, execution_id, from_version=known + 1, limit=FOLD_PAGE)

    async def _head(self, scope: Scope | None, execution_id: int) -> int | NoetlError:
        """Its version, or why that cannot be told; for an execution that has ended nobody needs it."""
        try:
            return (await self._log.read(scope, execution_id, limit=0)).head_version
        except NoetlError as exc:
            return exc

    async def _projected(self, scope: Scope | None, execution_id: int) -> ExecutionView | None:
        try:
            return await self._projections.get_execution(scope, execution_id)
        except (NotFound, Unavailable, DeadlinePassed):  # not yet, or nobody there to ask: the log knows
            return None


def _state_of(view: ExecutionView | None, execution_id: int) -> State:
    """What was projected, to be folded on; an empty state if it cannot be, or was folded with another registry.

    An older projector does not say with which. That is shown and not stored, so the difference will do: to fold each
    from its first event, at every look, is what api can afford for a few and not for all.
    """
    if view is not None and view.upcasters in ("", UPCASTERS.digest):
        try:
            state = read_state(view.state)
        except Corrupt:
            return empty(execution_id)
        if state.stream_version == view.stream_version:
            return state
    return empty(execution_id)
