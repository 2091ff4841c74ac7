"""Looks for the payloads of a share of executions: several at once, and each once, however many refer to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from noetl_contracts.clients.find_payloads import FindPayloads
from noetl_contracts.clients.payloads import PayloadClient
from noetl_core.evidence.documents import RESOLVED
from noetl_core.evidence.findings import Finding
from noetl_core.ports.event_log import Scope
from noetl_core.replay.payload_uses import PayloadUses

AT_ONCE: Final = 8
"""Enough to hide the way to the store; tasks of Spark multiply it."""


class SharePayloads:
    """Knows what became of each payload that it has been asked for."""

    def __init__(self, payloads: PayloadClient) -> None:
        self._payloads = payloads
        self._known: dict[tuple[Scope, str], tuple[str, int]] = {}
        """The outcome of each, and how many bytes are stored."""

    async def __call__(self, uses: PayloadUses, owner: Scope) -> list[Finding]:
        """What is wrong with those of one execution, in the order of addresses; raises only while the store is away."""
        known = uses.by_address()
        wanted = [(owner, uri) for uri in known]
        unknown = iter([one for one in wanted if one not in self._known])
        await asyncio.gather(*(self._look_for(unknown) for _ in range(min(AT_ONCE, len(wanted)))))
        findings: list[Finding] = []
        for uri, use in known.items():
            status, size = self._known[owner, uri]
            if status not in RESOLVED:
                findings.append(Finding(code=f"payload.{status}", message=f"payload {use.sha256} ({uri}) is {status}"))
            elif use.bytes and size != use.bytes:
                # Of one that is too large to be read nothing else tells whether all of it is there.
                told = f"stored_bytes of payload {use.sha256} is {size}, events say {use.bytes}"
                findings.append(Finding(code="payload.differs", message=told))
        return findings

    def counts(self) -> dict[str, int]:
        """How many there are of each outcome."""
        outcomes = [status for status, _ in self._known.values()]
        return {status: outcomes.count(status) for status in sorted(set(outcomes))}

    async def _look_for(self, unknown: Iterator[tuple[Scope, str]]) -> None:
        """All of them take from the same, so that a large one holds up nobody."""
        for owner, uri in unknown:
            status, size, _ = await FindPayloads(self._payloads, owner=owner, take_up_to=0).look(uri)
            self._known[owner, uri] = status, size
