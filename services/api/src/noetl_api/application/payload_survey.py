"""Reads everything that may refer to payloads, once, and remembers what a collector must know of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from noetl_core.collection.cycles import Cycle, Stage, evolve
from noetl_core.collection.documents import addresses_in, documents_in
from noetl_core.collection.reach import FIELD_BITS, Reached, digests_in
from noetl_core.collection.worklist import DocumentReading, Worklist
from noetl_core.envelope import parse_body
from noetl_core.errors import NoetlError, NotFound, Rejected
from noetl_core.events import is_terminal
from noetl_core.payloads import refer_to_digest
from noetl_core.ports.event_log import Scope
from noetl_core.ports.payloads import PayloadStore
from noetl_core.ports.reachability import LogScan, ScannedEvent, ScannedText
from noetl_servicekit.logging import get_logger

logger = get_logger()

SMALL_PAGE: Final = 50
"""Of events; as many are looked through in a moment."""


class DocumentUnreadable(Rejected):
    """Something that may refer to payloads cannot be read: what it reaches is not known, so nothing is garbage."""

    code = "payload.document_unreadable"


@dataclass(slots=True)
class Survey:
    """What was reached when the reading began, and which collections are open."""

    now: datetime
    """By the log's clock, from before anything was read: all that was committed until then has been seen."""
    reached: Reached
    cycles: dict[int, Cycle] = field(default_factory=dict)
    newest_cycles: dict[Scope, int] = field(default_factory=dict)
    """The last collection of each organization, open or not."""
    documents: Worklist = field(default_factory=Worklist)
    """Those that may refer to payloads themselves."""
    organizations: set[Scope] = field(default_factory=set)
    events: int = 0

    def open_cycles(self, scope: Scope) -> list[Cycle]:
        """In the order of their beginning."""
        return [cycle for _, cycle in sorted(self.cycles.items()) if cycle.scope == scope]

    def take_events(self, page: Sequence[ScannedEvent]) -> None:
        """Events on their way past."""
        for event in page:
            self.events += 1
            scope = Scope(tenant_id=event.tenant_id, organization_id=event.organization_id)
            self.organizations.add(scope)
            for sha256 in digests_in(event.body):
                self.reached.add(sha256)
            self.documents.add(scope, documents_in(event.body))
            if event.event_type.startswith("payload."):
                self._take_step(event)
            elif is_terminal(event.event_type):
                self.cycles.pop(event.execution_id, None)

    def take_texts(self, page: Sequence[ScannedText]) -> None:
        """A playbook may name a payload too."""
        for text in page:
            scope = Scope(tenant_id=text.tenant_id, organization_id=text.organization_id)
            self.organizations.add(scope)
            content = text.content.encode(errors="replace")
            for sha256 in digests_in(content):
                self.reached.add(sha256)
            self.documents.add(scope, addresses_in(content))

    def take_piece(self, owner: Scope, reading: DocumentReading, piece: bytes) -> None:
        """Of a document."""
        self.documents.add(owner, reading.take(piece, self.reached))

    def _take_step(self, event: ScannedEvent) -> None:
        envelope = parse_body(event.body)
        cycle = evolve(self.cycles.get(event.execution_id), envelope, ingest_time=event.ingest_time)
        if cycle is None:
            return
        self.newest_cycles[cycle.scope] = max(self.newest_cycles.get(cycle.scope, 0), cycle.execution_id)
        if cycle.stage is Stage.SWEPT:
            self.cycles.pop(event.execution_id, None)
        else:
            self.cycles[event.execution_id] = cycle


async def survey_log(
    scan: LogScan, payloads: PayloadStore, scope: Scope | None, *, salt: int, field_bits: int = FIELD_BITS
) -> AsyncIterator[Survey]:
    """Read all of it; the same survey again and again, complete when there is no more."""
    survey = Survey(now=await scan.now(), reached=Reached(salt=salt, field_bits=field_bits))
    async for events in scan.events(scope):
        if len(events) > SMALL_PAGE:  # In a thread: others are being served meanwhile.
            await asyncio.to_thread(survey.take_events, events)
        else:
            survey.take_events(events)
        yield survey
    async for texts in scan.playbooks(scope):
        if texts:
            await asyncio.to_thread(survey.take_texts, texts)
    while document := survey.documents.take():
        await _read_document(survey, payloads, *document)
        yield survey
    yield survey


async def _read_document(survey: Survey, payloads: PayloadStore, owner: Scope, sha256: str) -> None:
    """Through one that is not there, nobody reaches anything; one that cannot be read stops the collection."""
    ref = refer_to_digest(sha256, size=0, tenant_id=owner.tenant_id, organization_id=owner.organization_id)
    reading = DocumentReading()
    try:
        async for piece in payloads.stream(ref):
            await asyncio.to_thread(survey.take_piece, owner, reading, piece)
            if reading.is_enough:
                break
    except NotFound:
        logger.warning("payload.document_missing", sha256=sha256)
    except NoetlError as exc:
        raise DocumentUnreadable(
            f"nothing is collected: {ref.uri} may refer to payloads, and cannot be read: {exc.message}", uri=ref.uri
        ) from exc
