"""A share of a bulk verification: some executions, read from api, folded here, compared with their live rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import IDEMPOTENT_METHODS, EventLogClient, EvidenceClient
from noetl_core.canonical import encode
from noetl_core.evidence.verdict import HistoryCheck, Verdict
from noetl_core.evidence.verify_executions import VerifyExecutions, batches
from noetl_core.ports.streams import StreamHead
from noetl_core.surfaces.shapes import Surface

SHARE_EVENTS: Final = 5_000
SHARE_EXECUTIONS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where api is, who asks, and for how long projectors may be waited for; travels to tasks, and nowhere else."""

    address: str
    token: str | None = field(repr=False)
    tls: bool = False
    wait_seconds: float = 10.0


@dataclass(slots=True, kw_only=True)
class ShareReport:
    """What came of it; only what is not proved is told in full."""

    executions: int = 0
    events: int = 0
    unsettled: int = 0
    rows: dict[str, int] = field(default_factory=lambda: {str(surface): 0 for surface in Surface})
    """That were compared, by surface."""
    failed: list[str] = field(default_factory=list)
    """Verdicts as canonical JSON."""

    def add(self, verdict: Verdict) -> None:
        """One more execution."""
        self.executions += 1
        self.events += verdict.events
        self.unsettled += verdict.unsettled and not verdict.findings
        self._count(verdict.rows)
        if verdict.findings:
            self.failed.append(encode(verdict.to_json()).decode())

    def add_all(self, other: ShareReport) -> None:
        """Those of another share."""
        self.executions += other.executions
        self.events += other.events
        self.unsettled += other.unsettled
        self.failed += other.failed
        self._count(other.rows)

    def _count(self, rows: Mapping[str, int]) -> None:
        for surface, number in rows.items():
            self.rows[surface] += number


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
    channel = open_channel(
        target.address,
        token=target.token,
        retryable_methods=IDEMPOTENT_METHODS,
        credentials=grpc.ssl_channel_credentials() if target.tls else None,
    )
    async with channel:
        evidence = EvidenceClient(channel)
        verify = VerifyExecutions(
            EventLogClient(channel, timeout=60.0),
            evidence,
            # Whoever brings histories along wants them not to be read from the log.
            columns=evidence if begun is None else None,
            wait_seconds=target.wait_seconds,
        )
        for batch in batches(heads):
            for one in await verify(batch, begun):
                report.add(one.verdict)
    return report
