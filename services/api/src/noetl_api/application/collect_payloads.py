"""Collects payloads that no event reaches; a dry run unless it is told otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from noetl_core.append import Fence
from noetl_core.collection.cycles import may_be_marked
from noetl_core.collection.reach import FIELD_BITS
from noetl_core.collection.report import CollectionReport
from noetl_core.errors import DeadlinePassed, InvalidInput, NoetlError, Overloaded, Rejected
from noetl_core.payloads import StoredPayload
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.leases import ShardLeases
from noetl_core.ports.payloads import CollectablePayloads
from noetl_core.ports.reachability import LogScan
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger

from noetl_api.application.collection_steps import MAX_LISTED, CollectionSteps, OutOfTime
from noetl_api.application.fenced_log import fenced_log
from noetl_api.application.payload_survey import Survey, survey_log
from noetl_api.application.scopes import visible_scope
from noetl_api.telemetry import CollectionMetrics

logger = get_logger()

CLAIM_SECONDS: Final = 5.0
MAX_GRACE_SECONDS: Final = 10 * 365 * 86_400.0
REPORT_EVERY: Final = 10_000
"""Payloads between two reports to whoever watches."""


class StoreIsShared(Rejected):
    """Another installation keeps payloads here too: what its events reach cannot be known from this log."""

    code = "payload.store_shared"


async def claim_payload_store(payloads: CollectablePayloads, leases: ShardLeases) -> None:
    """Leave word in the store that this installation uses it, so that no other one's collector deletes what is ours.

    A store that is away keeps nobody from starting; the next start tries again, and a collection insists on it.
    """
    try:
        async with asyncio.timeout(CLAIM_SECONDS):
            await payloads.claim((await leases.installation()).log_generation)
    except NoetlError as exc:
        logger.warning("payload.store_not_claimed", code=exc.code, reason=exc.message)
    except TimeoutError:
        reason = f"the store has not answered for {CLAIM_SECONDS:g} s"
        logger.warning("payload.store_not_claimed", code=DeadlinePassed.code, reason=reason)


class CollectPayloads:
    """Reads the log, does what is due in collections that are under way, and begins new ones.

    It may be interrupted anywhere and repeated; what it does twice is done once. Why nothing that an event reaches is
    ever deleted is told in ADR 0029.
    """

    def __init__(
        self,
        *,
        log: EventLog,
        scan: LogScan,
        payloads: CollectablePayloads,
        leases: ShardLeases,
        next_id: Callable[[], int],
        metrics: CollectionMetrics,
        grace_seconds: float,
        min_grace_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        field_bits: int = FIELD_BITS,
    ) -> None:
        self._log = log
        self._scan = scan
        self._payloads = payloads
        self._leases = leases
        self._next_id = next_id
        self._metrics = metrics
        self._grace_seconds = grace_seconds
        self._min_grace_seconds = min_grace_seconds
        self._clock = clock
        self._field_bits = field_bits
        self._is_running = False

    async def __call__(
        self,
        caller: Caller,
        scope: Scope | None,
        *,
        apply: bool,
        grace_seconds: float = 0.0,
        fence: Fence | None = None,
    ) -> AsyncIterator[CollectionReport]:
        """How far it is, now and then, and at last what it came to."""
        caller.require(Role.ADMIN)
        visible = visible_scope(caller, scope)
        grace = self._grace(grace_seconds)
        asked = fenced_log(self._log, caller, fence)
        if self._is_running:
            raise Overloaded("payloads are being collected already")
        self._is_running = True
        try:
            await self._check_owner()
            async for report in self._collect(asked, visible, apply=apply, grace=grace):
                yield report
        finally:
            self._is_running = False

    def _grace(self, asked_seconds: float) -> timedelta:
        seconds = asked_seconds or self._grace_seconds
        if not self._min_grace_seconds <= seconds <= MAX_GRACE_SECONDS:
            raise InvalidInput(
                f"a grace period of {seconds:g} seconds is not possible here, "
                f"from {self._min_grace_seconds:g} to {MAX_GRACE_SECONDS:g} are"
            )
        return timedelta(seconds=seconds)

    async def _check_owner(self) -> None:
        own = (await self._leases.installation()).log_generation
        others = await self._payloads.claim(own) - {own}
        if others:
            raise StoreIsShared(
                f"the payload store was used by {len(others)} other installation(s) too, whose events are not in this "
                f"log: {', '.join(sorted(others))}; see docs/howto/payload-gc.md"
            )

    async def _collect(
        self, asked: EventLog, scope: Scope | None, *, apply: bool, grace: timedelta
    ) -> AsyncIterator[CollectionReport]:
        report = CollectionReport(applied=apply, grace_seconds=grace.total_seconds())
        began_at = self._clock()
        salt = self._next_id()
        async for survey in survey_log(self._scan, self._payloads, scope, salt=salt, field_bits=self._field_bits):
            report.events = survey.events
            yield replace(report)
        report.phase = "payloads"
        report.organizations = len(survey.organizations)
        steps = CollectionSteps(
            log=self._log,
            asked=asked,
            payloads=self._payloads,
            next_id=self._next_id,
            survey=survey,
            report=report,
            grace=grace,
            seconds_spent=lambda: self._clock() - began_at,
        )
        try:
            for organization in sorted(survey.organizations, key=lambda one: (one.tenant_id, one.organization_id)):
                async for progress in self._organization(steps, survey, report, organization):
                    yield progress
        except OutOfTime as exc:
            logger.warning("payload.collection_late", seconds=round(exc.seconds, 3))
        report.phase = "done"
        self._count(report)
        yield report

    async def _organization(
        self, steps: CollectionSteps, survey: Survey, report: CollectionReport, scope: Scope
    ) -> AsyncIterator[CollectionReport]:
        known = await steps.go_on(scope)
        marks: list[StoredPayload] = []
        names = {"tenant_id": scope.tenant_id, "organization_id": scope.organization_id}
        async for aside in self._payloads.find_withdrawn(**names):
            # Of a collection that somebody ended. Nobody puts payloads aside any more who began before.
            if aside.sha256 not in known and (aside.stored_at is None or aside.stored_at <= survey.now - steps.grace):
                if aside.sha256 in survey.reached:
                    await steps.restore(scope, aside)
                else:
                    marks.append(aside)
        may_mark = True
        async for stored in self._payloads.find(**names):
            report.payloads += 1
            report.payload_bytes += stored.bytes
            if report.payloads % REPORT_EVERY == 0:
                yield replace(report)
            if stored.sha256 in survey.reached:
                continue
            report.unreferenced += 1
            report.unreferenced_bytes += stored.bytes
            if stored.sha256 in known:
                continue
            if not may_be_marked(stored, survey.reached, now=survey.now, grace=steps.grace):
                report.young += 1
                continue
            if may_mark:
                marks.append(stored)
            if len(marks) >= MAX_LISTED:
                may_mark = await steps.mark(scope, marks)
                marks = []
        if marks and may_mark:
            await steps.mark(scope, marks)

    def _count(self, report: CollectionReport) -> None:
        self._metrics.runs.labels("applied" if report.applied else "dry").inc()
        self._metrics.unreferenced_bytes.set(report.unreferenced_bytes)
        if report.applied:
            for name in ("marked", "withdrawn", "swept", "restored"):
                self._metrics.payloads.labels(name).inc(getattr(report, name))
            self._metrics.swept_bytes.inc(report.swept_bytes)
        logger.info(
            "payload.collected",
            applied=report.applied,
            events=report.events,
            payloads=report.payloads,
            unreferenced=report.unreferenced,
            marked=report.marked,
            withdrawn=report.withdrawn,
            swept=report.swept,
            swept_bytes=report.swept_bytes,
            restored=report.restored,
        )
