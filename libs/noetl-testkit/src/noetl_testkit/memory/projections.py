"""The in-memory twin of the projection store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from noetl_core.canonical import decode, encode
from noetl_core.errors import InvalidInput, NoetlError, Unavailable
from noetl_core.execution_view import execution_view, late_after
from noetl_core.fold import prune
from noetl_core.ids import MAX_ID, parse_id
from noetl_core.ports.deadlines import LateExecution, LatePlace
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import ExecutionColumns, LiveExecution, LivePage, RowPage, RowPlace, StoredRow
from noetl_core.ports.projection_store import (
    Barrier,
    ProjectedExecution,
    Refusal,
    ShardCheckpoint,
    SilentPlace,
    StoredProjection,
    Written,
)
from noetl_core.ports.projections import ExecutionPage, ExecutionView, SilentCommand
from noetl_core.ports.quiet import QuietExecution
from noetl_core.state_json import decode_state, encode_state
from noetl_core.surfaces.execution_rows import execution_row
from noetl_core.surfaces.shapes import Row, Surface, check_row
from noetl_core.timestamps import parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredExecution:
    """The row of an execution; the state is bytes, so that nothing is shared with whoever wrote it."""

    view: ExecutionView
    state: bytes
    shard: int
    epoch: int
    next_deadline: datetime | None


class InMemoryProjections:
    """Rows in dictionaries; `failure`, `unholdable` and `most_rows` are switches for tests."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.executions: dict[int, StoredExecution] = {}
        self.rows: dict[Surface, dict[tuple[int, str], bytes]] = {surface: {} for surface in Surface}
        """By surface, execution and key, as bytes; the execution's own is made of what is stored of it."""
        self.shards: dict[int, ShardCheckpoint] = {}
        self.closed: dict[int, list[Barrier]] = {}
        """Barriers of each execution, oldest first."""
        self.kept_barriers: set[tuple[int, int]] = set()
        self.loads = 0
        self.writes = 0
        self.failure: NoetlError | None = None
        self.unholdable: set[int] = set()
        self.most_rows: int | None = None
        """How many can be written before the time is over."""
        self._now = now

    async def load(self, execution_ids: Collection[int]) -> Mapping[int, StoredProjection]:
        """What is stored of these executions."""
        self._check()
        self.loads += 1
        return {
            one: StoredProjection(
                state=decode_state(row.state),
                stream_version=row.view.stream_version,
                epoch=row.epoch,
                upcasters=row.view.upcasters,
            )
            for one in execution_ids
            if (row := self.executions.get(one)) is not None
        }

    async def versions(self, execution_ids: Collection[int]) -> Mapping[int, int]:
        """Versions that the rows of these executions include."""
        self._check()
        return {one: self.executions[one].view.stream_version for one in execution_ids if one in self.executions}

    async def write(self, executions: Sequence[ProjectedExecution]) -> Written:
        """Store what is newer and not of a deposed owner."""
        self._check()
        if self.most_rows is not None and len(executions) > self.most_rows:
            raise Unavailable("the store did not answer in time")
        if any(one.state.execution.execution_id in self.unholdable for one in executions):
            raise InvalidInput("the store refuses a projection")
        self.writes += 1
        refused: dict[int, Refusal] = {}
        for one in executions:
            execution_id = one.state.execution.execution_id
            self._remove_replaced(one)
            refusal = self._refusal(one)
            if refusal is None:
                self._store(one)
            else:
                refused[execution_id] = refusal
        return Written(projected_at=self._now(), refused=refused)

    def _remove_replaced(self, one: ProjectedExecution) -> None:
        execution_id = one.state.execution.execution_id
        stored = self.executions.get(execution_id)
        if stored is None or stored.view.stream_version != one.replaces or stored.epoch > one.epoch:
            return
        del self.executions[execution_id]
        for rows in self.rows.values():
            for key in [key for key in rows if key[0] == execution_id]:
                del rows[key]

    @asynccontextmanager
    async def together(self) -> AsyncIterator[InMemoryProjections]:
        """Of a copy, what was written becomes everybody's in the end."""
        self._check()
        draft = InMemoryProjections(now=self._now)
        draft.executions = dict(self.executions)
        draft.rows = {surface: dict(rows) for surface, rows in self.rows.items()}
        draft.unholdable, draft.most_rows = self.unholdable, self.most_rows
        yield draft
        self._check()
        self.writes += 1
        changed = {key for key, row in draft.executions.items() if self.executions.get(key) is not row}
        self.executions.update({key: draft.executions[key] for key in changed})
        for surface, rows in self.rows.items():
            others = {key: data for key, data in rows.items() if key[0] not in changed}
            self.rows[surface] = others | {key: data for key, data in draft.rows[surface].items() if key[0] in changed}

    def _refusal(self, one: ProjectedExecution) -> Refusal | None:
        stored = self.executions.get(one.state.execution.execution_id)
        if stored is None:
            return Refusal(stream_version=0, epoch=0) if one.base_version else None
        is_newer = stored.view.stream_version < one.state.stream_version and stored.epoch <= one.epoch
        if is_newer and stored.view.upcasters == one.upcasters:
            return None
        return Refusal(stream_version=stored.view.stream_version, epoch=stored.epoch)

    def _store(self, one: ProjectedExecution) -> None:
        state = prune(one.state)
        view = execution_view(state, upcasters=one.upcasters)
        self.executions[view.execution_id] = StoredExecution(
            view=view,
            state=encode_state(state),
            shard=one.shard,
            epoch=one.epoch,
            next_deadline=late_after(one.state),
        )
        self.rows[Surface.EXECUTION][view.execution_id, str(view.execution_id)] = encode(execution_row(one.state))
        for surface, rows in one.rows.items():
            for key, row in rows.items():
                check_row(surface, row)
                known = self.row(surface, view.execution_id, key)
                if known is None or known["stream_version"] <= row["stream_version"]:
                    self.rows[surface][view.execution_id, key] = encode(dict(row))

    def row(self, surface: Surface, execution_id: int, key: str) -> Row | None:
        """One row as it was written."""
        data = self.rows[surface].get((execution_id, key))
        return None if data is None else _object(data)

    async def find_objects(self, keys: Mapping[int, Collection[str]]) -> Mapping[int, Mapping[str, Row]]:
        """Rows of business objects by execution and key."""
        self._check()
        return {
            execution_id: {
                key: row for key in named if (row := self.row(Surface.BUSINESS_OBJECTS, execution_id, key)) is not None
            }
            for execution_id, named in keys.items()
        }

    async def list_rows(
        self, scope: Scope | None, execution_ids: Collection[int], *, after: RowPlace | None = None, limit: int
    ) -> RowPage:
        """Rows of all surfaces, by surface, execution and key."""
        self._check()
        views = {one: self.executions[one].view for one in execution_ids if one in self.executions}
        versions = {one: view.stream_version for one, view in views.items() if scope is None or _is_of(scope, view)}
        upcasters = {one: digest for one in versions if (digest := views[one].upcasters)}
        columns = {
            one: ExecutionColumns(shard=self.executions[one].shard, next_deadline=self.executions[one].next_deadline)
            for one in versions
        }
        order = list(Surface)
        places = sorted(
            (order.index(surface), one, key.encode())
            for surface, rows in self.rows.items()
            for one, key in rows
            if one in versions
        )
        if after is not None:
            behind = (order.index(after.surface), after.execution_id, after.key.encode())
            places = [place for place in places if place > behind]
        rows = tuple(
            StoredRow(
                execution_id=one,
                surface=order[index],
                key=key.decode(),
                data=self.rows[order[index]][one, key.decode()],
            )
            for index, one, key in places[:limit]
        )
        page = RowPage(versions=versions, rows=rows, following=None, upcasters=upcasters, columns=columns)
        if len(places) <= limit:
            return page
        last = RowPlace(surface=rows[-1].surface, execution_id=rows[-1].execution_id, key=rows[-1].key)
        return replace(page, following=last)

    async def list_live(self, scope: Scope | None, *, after: int = 0, limit: int) -> LivePage:
        """Executions that have a row, by their ids; none has rows and not its own."""
        self._check()
        found = [
            LiveExecution(
                execution_id=execution_id,
                tenant_id=row.view.tenant_id,
                organization_id=row.view.organization_id,
                stream_version=row.view.stream_version,
            )
            for execution_id, row in sorted(self.executions.items())
            if execution_id > after
        ]
        looked_at = found[:limit]
        return LivePage(
            executions=tuple(
                one for one in looked_at if scope is None or _is_of(scope, self.executions[one.execution_id].view)
            ),
            following=looked_at[-1].execution_id if len(found) > limit else None,
        )

    async def checkpoints(self, shards: Collection[int]) -> Mapping[int, ShardCheckpoint]:
        """How far these shards have come."""
        self._check()
        return {shard: self.shards[shard] for shard in shards if shard in self.shards}

    async def write_checkpoints(self, checkpoints: Sequence[ShardCheckpoint]) -> None:
        """Note how far shards have come."""
        self._check()
        for new in checkpoints:
            old = self.shards.get(new.shard, ShardCheckpoint(shard=new.shard))
            marks = [mark for mark in (old.caught_up_to, new.caught_up_to) if mark is not None]
            self.shards[new.shard] = ShardCheckpoint(
                shard=new.shard,
                last_event_id=old.last_event_id if new.last_event_id is None else new.last_event_id,
                projected_at=new.projected_at or old.projected_at,
                lag_seconds=old.lag_seconds if new.lag_seconds is None else new.lag_seconds,
                caught_up_to=max(marks, default=None),
            )

    async def write_barriers(self, execution_ids: Collection[int]) -> list[Barrier]:
        """Close what is committed of these executions."""
        self._check()
        written: list[Barrier] = []
        for execution_id in sorted(execution_ids):
            row = self.executions.get(execution_id)
            known = self.closed.get(execution_id, [])
            if row is None or any(one.version >= row.view.stream_version for one in known):
                continue
            barrier = Barrier(
                execution_id=execution_id,
                shard=row.shard,
                version=row.view.stream_version,
                last_event_id=decode_state(row.state).last_event_id,
                committed_at=self._now(),
            )
            kept = [one for one in known if (execution_id, one.version) in self.kept_barriers]
            self.closed[execution_id] = [*kept, barrier]
            written.append(barrier)
        return written

    async def keep_barrier(self, execution_id: int, version: int) -> None:
        """The log tells of it, or is about to."""
        self._check()
        self.kept_barriers.add((execution_id, version))

    async def barriers(self, execution_id: int) -> list[Barrier]:
        """Of one execution, oldest first."""
        self._check()
        return list(self.closed.get(execution_id, ()))

    async def find_execution(self, scope: Scope | None, execution_id: int) -> ExecutionView | None:
        """One row by its key."""
        self._check()
        row = self.executions.get(execution_id)
        return row.view if row is not None and (scope is None or _is_of(scope, row.view)) else None

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
        """Rows by key, from the newest."""
        self._check()
        below = parse_id(page_token, what="page_token") if page_token else MAX_ID
        found = [
            replace(row.view, state={})
            for execution_id, row in sorted(self.executions.items(), reverse=True)
            if execution_id < below
            and _is_of(scope, row.view)
            and status in ("", row.view.status)
            and path in ("", row.view.path)
            and parent_execution_id in (None, int(row.view.parent_execution_id or 0))
        ]
        shown = found[:page_size]
        return ExecutionPage(
            executions=tuple(shown),
            next_page_token=str(shown[-1].execution_id) if len(found) > page_size else "",
        )

    async def silent_commands(self, *, limit: int, after: SilentPlace | None = None) -> tuple[SilentCommand, ...]:
        """Claimed commands whose lease is over."""
        self._check()
        now = self._now()
        leases = (
            (parse_time(row["lease_until"]), *key)
            for key, data in self.rows[Surface.COMMANDS].items()
            if "lease_until" in (row := _object(data))
        )
        silent = sorted(place for place in leases if place[0] < now)
        places = [place for place in silent if after is None or place > after]
        return tuple(self._silent(*place) for place in places[:limit])

    async def quiet_executions(self, *, quiet_seconds: float, limit: int, after: int = 0) -> tuple[QuietExecution, ...]:
        """Executions without an event for so long, oldest first."""
        self._check()
        before = self._now() - timedelta(seconds=quiet_seconds)
        quiet = [
            QuietExecution(
                execution_id=execution_id,
                tenant_id=row.view.tenant_id,
                organization_id=row.view.organization_id,
                path=row.view.path,
                quiet_since=since,
            )
            for execution_id, row in sorted(self.executions.items())
            if execution_id > after
            and row.view.end_time is None
            and (since := decode_state(row.state).event_time_watermark) is not None
            and since < before
        ]
        return tuple(quiet[:limit])

    async def passed_deadlines(self, *, limit: int, after: LatePlace | None = None) -> tuple[LateExecution, ...]:
        """Executions whose next deadline has passed."""
        self._check()
        now = self._now()
        late = sorted(
            (row.next_deadline, execution_id)
            for execution_id, row in self.executions.items()
            if row.next_deadline is not None and row.next_deadline < now
        )
        places = [place for place in late if after is None or place > after]
        views = {execution_id: self.executions[execution_id].view for _, execution_id in places[:limit]}
        return tuple(
            LateExecution(
                execution_id=execution_id,
                tenant_id=views[execution_id].tenant_id,
                organization_id=views[execution_id].organization_id,
                deadline=deadline,
                cascades=views[execution_id].end_time is not None,
            )
            for deadline, execution_id in places[:limit]
        )

    def _silent(self, lease_until: datetime, execution_id: int, command_id: str) -> SilentCommand:
        row, execution = _object(self.rows[Surface.COMMANDS][execution_id, command_id]), self.executions[execution_id]
        return SilentCommand(
            execution_id=execution_id,
            command_id=command_id,
            tenant_id=execution.view.tenant_id,
            organization_id=execution.view.organization_id,
            step=row["step"],
            attempt=row["attempt"],
            worker_id=row.get("worker_id", ""),
            aggregate_version=row["aggregate_version"],
            lease_until=lease_until,
            trace=row.get("trace", ""),
        )

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


def _object(data: bytes) -> dict[str, Any]:
    value = decode(data)
    assert isinstance(value, dict)
    return value


def _is_of(scope: Scope, view: ExecutionView) -> bool:
    return (view.tenant_id, view.organization_id) == (scope.tenant_id, scope.organization_id)
