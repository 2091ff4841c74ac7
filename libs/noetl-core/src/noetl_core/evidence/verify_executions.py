"""Verifies executions over ports: histories from the log, rows from the projections, verdicts out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt, NoetlError
from noetl_core.evidence.chain import Head, beyond_head
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.live import LiveState, read_live
from noetl_core.evidence.verdict import HistoryCheck, Verdict
from noetl_core.ports.event_columns import EventColumns, Place
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.live_rows import LiveRows
from noetl_core.ports.streams import StreamHead
from noetl_core.values import dataclass, replace

PAGE: Final = 1000
BATCH_EXECUTIONS: Final = 50
BATCH_EVENTS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A verdict, and what it was made from."""

    head: StreamHead
    check: HistoryCheck
    live: LiveState | None
    verdict: Verdict


class VerifyExecutions:
    """Replays each history to where its live rows stand, which is at its head or beyond, and compares."""

    def __init__(
        self,
        log: EventLog,
        rows: LiveRows,
        *,
        columns: EventColumns | None = None,
        scope: Scope | None = None,
        wait_seconds: float = 10.0,
        keep_rows: bool = False,
        seen: Callable[[Sequence[StoredEvent]], None] = lambda events: None,
    ) -> None:
        self._log = log
        self._rows = rows
        self._columns = columns
        self._scope = scope
        self._wait_seconds = wait_seconds
        self._keep_rows = keep_rows
        self._seen = seen
        """Told of every page of events that is read, for whoever keeps them."""

    async def __call__(
        self, heads: Sequence[StreamHead], begun: Mapping[int, HistoryCheck] | None = None
    ) -> list[Verified]:
        """A batch; histories that were taken from elsewhere before are read on from there."""
        checks = {head.execution_id: (begun or {}).get(head.execution_id) for head in heads}
        checked: dict[int, HistoryCheck] = {}
        told: dict[int, list[Finding]] = {}
        for head in heads:
            check = checked[head.execution_id] = checks[head.execution_id] or HistoryCheck(head.execution_id)
            told[head.execution_id] = await self._read_history(check, head)
        live, unsettled, unread = await self._read_live({head.execution_id: head.version for head in heads})
        for execution_id, finding in (*unread, *await self._differing_columns(list(checked))):
            told[execution_id].append(finding)
        verified: list[Verified] = []
        for head in heads:
            check, state = checked[head.execution_id], live.get(head.execution_id)
            if state is not None and not check.findings:
                told[head.execution_id] += await self._read_beyond(check, state.version)
            verdict = check.against(state, unsettled=head.execution_id in unsettled)
            findings = dict.fromkeys((*verdict.findings, *told[head.execution_id]))
            verdict = replace(verdict, findings=tuple(findings))
            verified.append(Verified(head=head, check=check, live=state, verdict=verdict))
        return verified

    async def _read_history(self, check: HistoryCheck, head: StreamHead) -> list[Finding]:
        try:
            beyond = await self._read_to(check, head.version)
        except NoetlError as exc:
            check.findings.append(_unread("event.unreadable", exc, stream_version=check.version + 1))
            return []
        check.end(Head(version=head.version, checksum=head.checksum))
        return [*beyond, *check.told_otherwise(head)]

    async def _read_beyond(self, check: HistoryCheck, version: int) -> list[Finding]:
        try:
            return await self._read_to(check, version)
        except NoetlError as exc:
            return [_unread("event.unreadable", exc, stream_version=check.version + 1)]

    async def _read_live(
        self, wanted: Mapping[int, int]
    ) -> tuple[dict[int, LiveState], frozenset[int], list[tuple[int, Finding]]]:
        """What is live, which of it never stood still or could not be read, and what is said of the latter."""
        try:
            live, unsettled = await read_live(
                self._rows, self._scope, wanted, wait_seconds=self._wait_seconds, keep_rows=self._keep_rows
            )
        except NoetlError as exc:
            finding = _unread("row.shape", exc)
            if len(wanted) == 1:
                return {}, frozenset(wanted), [(one, finding) for one in wanted]
        else:
            return live, unsettled, []
        one_by_one = [await self._read_live({one: version}) for one, version in wanted.items()]
        return (
            {key: state for states, _, _ in one_by_one for key, state in states.items()},
            frozenset(one for _, moving, _ in one_by_one for one in moving),
            [one for _, _, found in one_by_one for one in found],
        )

    async def _differing_columns(self, execution_ids: list[int]) -> list[tuple[int, Finding]]:
        try:
            return await self._columns_of(execution_ids)
        except NoetlError as exc:
            finding = _unread("event.column_differs", exc)
            if len(execution_ids) == 1:
                return [(execution_ids[0], finding)]
        return [found for one in execution_ids for found in await self._differing_columns([one])]

    async def _columns_of(self, execution_ids: list[int]) -> list[tuple[int, Finding]]:
        found: list[tuple[int, Finding]] = []
        after: Place | None = None
        while self._columns is not None:
            page = await self._columns.check_columns(self._scope, execution_ids, after=after)
            found += page.findings
            if page.following is None:
                break
            after = page.following
        return found

    async def _read_to(self, check: HistoryCheck, version: int) -> list[Finding]:
        """What is not there is not waited for: the check names it. Given are events that the log does not own up to.

        Head and events of a page are of one moment, so an event beyond the head is none that has just been written.
        """
        beyond: list[Finding] = []
        while check.version < version:
            page = await self._log.read(
                self._scope, check.execution_id, from_version=check.version + 1, to_version=version, limit=PAGE
            )
            if not page.events:
                break
            self._seen(page.events)
            check.take(page.events)
            last = page.events[-1].stream_version
            if last > page.head_version and not beyond:
                beyond.append(beyond_head(page.head_version, last))
        return beyond


def _unread(code: str, exc: NoetlError, *, stream_version: int = 0) -> Finding:
    """What is said of something stored at which its reader failed; raises what is no matter of what is stored."""
    if not isinstance(exc, Corrupt) and exc.code != NoetlError.code:
        raise exc
    return Finding(code=code, message=f"it cannot be read: {exc.message}", stream_version=stream_version)


def batches(heads: Sequence[StreamHead]) -> Iterator[list[StreamHead]]:
    """Executions that are verified together: not too many of them, nor of their events."""
    batch: list[StreamHead] = []
    events = 0
    for head in heads:
        if batch and (len(batch) >= BATCH_EXECUTIONS or events + head.version > BATCH_EVENTS):
            yield batch
            batch, events = [], 0
        batch.append(head)
        events += head.version
    if batch:
        yield batch
