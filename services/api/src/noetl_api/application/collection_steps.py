"""The steps of a collection, each on what one survey of the log has seen: mark, withdraw, sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from datetime import timedelta
from typing import Final

from noetl_core.append import END_KEY, AppendRequest, StreamAppend, StreamStart
from noetl_core.collection.cycles import Cycle, Stage, decode_list, encode_list, refer
from noetl_core.collection.events import CollectionEvent, PayloadsMarked, PayloadsSwept, PayloadsWithdrawn
from noetl_core.collection.reach import Reached
from noetl_core.collection.report import CollectionReport
from noetl_core.envelope import Draft
from noetl_core.errors import AlreadyExists, AlreadyTerminal
from noetl_core.events import to_draft
from noetl_core.executions.events import PlaybookCompleted
from noetl_core.payloads import PayloadRef, StoredPayload
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.payloads import CollectablePayloads
from noetl_servicekit.logging import get_logger

from noetl_api.application.payload_survey import Survey

logger = get_logger()

PRODUCER: Final = "urn:noetl:payload-gc"
START_KEYS: Final = "payload-gc/"
MAX_LISTED: Final = 50_000
"""Payloads of one collection; more of them are several collections."""
AT_ONCE: Final = 16
LEAST_PATIENCE_SECONDS: Final = 60.0


class OutOfTime(Exception):
    """What the survey has seen is too old to act on; the next run goes on."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the survey is {seconds:.0f} s old")
        self.seconds = seconds


class CollectionSteps:
    """All that is done in one run. Of a dry run only the counts differ from what was found."""

    def __init__(
        self,
        *,
        log: EventLog,
        asked: EventLog,
        payloads: CollectablePayloads,
        next_id: Callable[[], int],
        survey: Survey,
        report: CollectionReport,
        grace: timedelta,
        seconds_spent: Callable[[], float],
    ) -> None:
        self.grace = grace
        self._log = log
        self._asked = asked
        """For what begins: what was done to the store is told in any case, also if whoever asked was deposed since."""
        self._payloads = payloads
        self._next_id = next_id
        self._survey = survey
        self._report = report
        self._seconds_spent = seconds_spent

    async def go_on(self, scope: Scope) -> Container[str]:
        """Do what is due in the open collections of an organization; returns all payloads that they are about."""
        cycles = self._survey.open_cycles(scope)
        known = Reached() if sum(cycle.count for cycle in cycles) > MAX_LISTED else set[str]()
        for cycle in cycles:
            listed = await self._read(cycle.listed)
            for one in listed:
                known.add(one.sha256)
            if not cycle.is_due(self._survey.now):
                self._report.waiting += len(listed)
                self._report.wait_until(cycle.due_at)
            elif cycle.stage is Stage.MARKED:
                await self._withdraw(cycle, listed)
            else:
                await self._sweep(cycle, listed)
        return known

    async def mark(self, scope: Scope, payloads: Sequence[StoredPayload]) -> bool:
        """Begin a collection; False if somebody else has begun one since the survey, who may have the same payloads.

        Each one is started under the id of the one before it, so two can never be about the same payload at once.
        """
        total = sum(one.bytes for one in payloads)
        if self._report.applied:
            marked = PayloadsMarked(
                payload_ref=await self._store(scope, payloads),
                count=len(payloads),
                total_bytes=total,
                grace_seconds=self.grace.total_seconds(),
            )
            before = self._survey.newest_cycles.get(scope) or self._survey.now.date()
            begun = await self._start(scope, marked, start_key=f"{START_KEYS}{before}")
            if begun is None:
                return False
            self._survey.newest_cycles[scope] = begun
            self._report.touched(begun)
            self._report.wait_until(self._survey.now + self.grace)
        self._report.marked += len(payloads)
        self._report.marked_bytes += total
        return True

    async def restore(self, scope: Scope, payload: StoredPayload) -> None:
        """An event reaches what was put aside: back with it."""
        if self._report.applied and not await self._payloads.restore(refer(scope, payload)):
            logger.error("payload.not_restored", sha256=payload.sha256)
            return
        self._report.restored += 1

    async def _withdraw(self, cycle: Cycle, listed: Sequence[StoredPayload]) -> None:
        async def withdraw(one: StoredPayload) -> bool:
            ref = refer(cycle.scope, one)
            if not self._report.applied:
                return await self._payloads.exists(ref)
            return await self._payloads.withdraw(ref, stored_before=self._survey.now)

        unreached = [one for one in listed if one.sha256 not in self._survey.reached]
        withdrawn = await self._each(cycle, unreached, withdraw)
        total = sum(one.bytes for one in withdrawn)
        self._report.withdrawn += len(withdrawn)
        self._report.withdrawn_bytes += total
        self._report.spared += len(listed) - len(withdrawn)
        if self._report.applied:
            await self._append(
                cycle,
                PayloadsWithdrawn(
                    payload_ref=await self._store(cycle.scope, withdrawn),
                    count=len(withdrawn),
                    total_bytes=total,
                    spared=len(listed) - len(withdrawn),
                ),
                is_last=not withdrawn,
            )
            if withdrawn:
                self._report.wait_until(self._survey.now + cycle.grace)

    async def _sweep(self, cycle: Cycle, listed: Sequence[StoredPayload]) -> None:
        async def purge(one: StoredPayload) -> bool:
            ref = refer(cycle.scope, one)
            if not self._report.applied:
                return await self._payloads.exists(ref)
            return await self._payloads.purge(ref, withdrawn_before=self._survey.now)

        restored_before = self._report.restored
        for one in listed:
            if one.sha256 in self._survey.reached:
                self._check_time(cycle)
                await self.restore(cycle.scope, one)
        unreached = [one for one in listed if one.sha256 not in self._survey.reached]
        swept = await self._each(cycle, unreached, purge)
        total = sum(one.bytes for one in swept)
        self._report.swept += len(swept)
        self._report.swept_bytes += total
        if self._report.applied:
            content = PayloadsSwept(
                payload_ref=await self._store(cycle.scope, swept),
                count=len(swept),
                total_bytes=total,
                restored=self._report.restored - restored_before,
            )
            await self._append(cycle, content, is_last=True)

    async def _each(
        self, cycle: Cycle, payloads: Sequence[StoredPayload], act: Callable[[StoredPayload], Awaitable[bool]]
    ) -> list[StoredPayload]:
        """Those for which it was true."""
        done: list[StoredPayload] = []
        for start in range(0, len(payloads), AT_ONCE):
            self._check_time(cycle)
            some = payloads[start : start + AT_ONCE]
            answers = await asyncio.gather(*(act(one) for one in some))
            done += [one for one, answer in zip(some, answers, strict=True) if answer]
        return done

    def _check_time(self, cycle: Cycle) -> None:
        """A run that was held up must not act on what has become of the log meanwhile."""
        seconds = self._seconds_spent()
        if seconds > max(cycle.grace.total_seconds() / 2, LEAST_PATIENCE_SECONDS):
            raise OutOfTime(seconds)

    async def _read(self, listed: PayloadRef | None) -> tuple[StoredPayload, ...]:
        return () if listed is None else decode_list(await self._payloads.get(listed))

    async def _store(self, scope: Scope, payloads: Sequence[StoredPayload]) -> PayloadRef | None:
        if not payloads:
            return None
        return await self._payloads.put(
            tenant_id=scope.tenant_id,
            organization_id=scope.organization_id,
            data=encode_list(payloads),
            media_type="application/json",
        )

    async def _start(self, scope: Scope, content: PayloadsMarked, *, start_key: str) -> int | None:
        execution_id = self._next_id()
        draft = to_draft(content, idempotency_key="payload/marked")
        start = StreamStart(start_key=start_key)
        appended = await self._asked.append(
            _request(scope, StreamAppend(execution_id=execution_id, drafts=(draft,), start=start))
        )
        return execution_id if appended[0].event.envelope().execution_id == execution_id else None

    async def _append(self, cycle: Cycle, content: CollectionEvent, *, is_last: bool) -> None:
        stage = Stage.WITHDRAWN if isinstance(content, PayloadsWithdrawn) else Stage.SWEPT
        drafts: list[Draft] = [to_draft(content, idempotency_key=f"payload/{stage.value}")]
        if is_last:
            drafts.append(to_draft(PlaybookCompleted(), idempotency_key=END_KEY))
        stream = StreamAppend(execution_id=cycle.execution_id, drafts=tuple(drafts))
        try:
            await self._log.append(_request(cycle.scope, stream))
        except (AlreadyExists, AlreadyTerminal) as exc:  # Another run has told it, or somebody has ended it.
            logger.info("payload.collection_told", execution_id=str(cycle.execution_id), code=exc.code)
        self._report.touched(cycle.execution_id)


def _request(scope: Scope, stream: StreamAppend) -> AppendRequest:
    return AppendRequest(
        tenant_id=scope.tenant_id, organization_id=scope.organization_id, streams=(stream,), producer=PRODUCER
    )
