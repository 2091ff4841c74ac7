"""A share of a bulk verification: some executions, read from api, folded here, compared with their live rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from noetl_contracts.clients import EventLogClient, EvidenceClient
from noetl_contracts.clients.payloads import PayloadClient
from noetl_core.canonical import encode
from noetl_core.evidence.verdict import HistoryCheck, Verdict
from noetl_core.evidence.verify_executions import Verified, VerifyExecutions, batches
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead
from noetl_core.surfaces.shapes import Surface
from noetl_core.values import replace

from noetl_adapters.spark.api_access import ApiAccess
from noetl_adapters.verify.share_payloads import SharePayloads

SHARE_EVENTS: Final = 5_000
SHARE_EXECUTIONS: Final = 200
UNKNOWN: Final = "unknown"
"""The registry of rows that do not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to ask, and what for."""

    api: ApiAccess
    wait_seconds: float = 10.0
    """That projectors have to catch up."""
    payloads: bool = False
    """Whether every payload that a history refers to is looked for."""


@dataclass(slots=True, kw_only=True)
class ShareReport:
    """What came of it; only what is not proved is told in full."""

    seen: set[int] = field(default_factory=set)
    """The executions that there is a verdict on: who gave out shares knows by it what nobody has looked at."""
    events: int = 0
    unsettled: int = 0
    rows: dict[str, int] = field(default_factory=lambda: {str(surface): 0 for surface in Surface})
    """That were compared, by surface."""
    upcasters: dict[str, int] = field(default_factory=dict)
    """How many executions have live rows of each registry, by its digest."""
    other_registry: int = 0
    """How many of them are not of the registry that their log was read with."""
    failed: list[str] = field(default_factory=list)
    """Verdicts as canonical JSON."""
    payloads: dict[str, int] = field(default_factory=dict)
    """That were looked for, by what became of them; one that several shares refer to is looked for by each."""

    @property
    def executions(self) -> int:
        """How many they are."""
        return len(self.seen)

    def add(self, verdict: Verdict) -> None:
        """One more execution."""
        self.seen.add(verdict.execution_id)
        self.events += verdict.events
        self.unsettled += verdict.unsettled and not verdict.findings
        self._count(verdict.rows)
        if verdict.live:
            self._count_registries({verdict.live_upcasters or UNKNOWN: 1})
            self.other_registry += verdict.is_of_another_registry
        if verdict.findings:
            self.failed.append(encode(verdict.to_json()).decode())

    def add_all(self, other: ShareReport) -> None:
        """Those of another share."""
        self.seen |= other.seen
        self.events += other.events
        self.unsettled += other.unsettled
        self.failed += other.failed
        self._count(other.rows)
        self._count_registries(other.upcasters)
        self.other_registry += other.other_registry
        for status, number in other.payloads.items():
            self.payloads[status] = self.payloads.get(status, 0) + number

    def _count(self, rows: Mapping[str, int]) -> None:
        for surface, number in rows.items():
            self.rows[surface] += number

    def _count_registries(self, upcasters: Mapping[str, int]) -> None:
        for digest, number in upcasters.items():
            self.upcasters[digest] = self.upcasters.get(digest, 0) + number


def shares_of(heads: Iterable[StreamHead]) -> Iterator[list[StreamHead]]:
    """Small enough that progress shows and that a lost one is soon done again; a long history is one by itself."""
    share: list[StreamHead] = []
    events = 0
    for head in heads:
        if share and (len(share) >= SHARE_EXECUTIONS or events + head.version > SHARE_EVENTS):
            yield share
            share, events = [], 0
        share.append(head)
        events += head.version
    if share:
        yield share


def verify_share(
    target: Target, heads: Sequence[StreamHead], begun: Mapping[int, HistoryCheck] | None = None
) -> ShareReport:
    """All executions of a share, in a loop and on a channel of their own; `begun` are histories from files."""
    return asyncio.run(_verify(target, heads, begun))


async def _verify(target: Target, heads: Sequence[StreamHead], begun: Mapping[int, HistoryCheck] | None) -> ShareReport:
    report = ShareReport()
    async with target.api.open() as channel:
        evidence = EvidenceClient(channel)
        verify = VerifyExecutions(
            EventLogClient(channel, timeout=60.0),
            evidence,
            # Whoever brings histories along wants them not to be read from the log.
            columns=evidence if begun is None else None,
            wait_seconds=target.wait_seconds,
        )
        payloads = SharePayloads(PayloadClient(channel, timeout=60.0)) if target.payloads else None
        for batch in batches(heads):
            for one in await verify(batch, begun):
                report.add(await _with_payloads(one, payloads))
        report.payloads = payloads.counts() if payloads is not None else {}
    return report


async def _with_payloads(one: Verified, payloads: SharePayloads | None) -> Verdict:
    """The verdict, and what is wrong with the payloads of a history that is whole."""
    replayed = one.check.replayed() if payloads is not None else None
    if payloads is None or replayed is None:
        return one.verdict
    owner = Scope(tenant_id=one.head.tenant_id, organization_id=one.head.organization_id)
    found = await payloads(replayed.payloads, owner)
    return replace(one.verdict, findings=(*one.verdict.findings, *found))
