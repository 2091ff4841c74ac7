"""One execution in memory that can be verified: its log, its stored rows and its payloads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from noetl_cli.verify.bundle_files import new_bundle
from noetl_cli.verify.make_bundle import Made, Options, make_bundle
from noetl_contracts.clients.payloads import FetchedPayload
from noetl_contracts.mapping.payloads import KnownPayload
from noetl_core.errors import NotFound, TooLargeToReplay
from noetl_core.payloads import PayloadRef, refer_to
from noetl_core.ports.event_columns import ColumnPage, Place
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import RowPage, RowPlace
from noetl_core.ports.streams import StreamHead

from noetl_testkit.compliance.projections import projected
from noetl_testkit.histories import (
    EXECUTION,
    NOON,
    History,
    claimed,
    completed,
    done,
    initialized,
    issued,
    started,
)
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.projections import InMemoryProjections

TWO_MIB = 2 * 1024 * 1024


class Replays:
    """An api whose limit of rows is below what any history has."""

    async def state(self, *arguments: Any, **named: Any) -> Any:
        """Refuses."""
        raise TooLargeToReplay("it has more than 0 rows at version 1")


class Evidence:
    """Heads, rows and columns, as api shows them."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.store = InMemoryProjections()

    async def find_stream(self, scope: Scope | None, execution_id: int) -> StreamHead:
        """Where the history ends."""
        last = self._history.stored[-1]
        return StreamHead(
            execution_id=execution_id,
            tenant_id="default",
            organization_id="default",
            version=last.stream_version,
            checksum=last.checksum,
            terminal=False,
            updated_at=NOON,
        )

    async def list_rows(
        self,
        scope: Scope | None,
        wanted: Mapping[int, int],
        *,
        after: RowPlace | None = None,
        wait_seconds: float = 0.0,
    ) -> RowPage:
        """Few a page."""
        return await self.store.list_rows(scope, wanted.keys(), after=after, limit=3)

    async def check_columns(
        self, scope: Scope | None, execution_ids: Collection[int], *, after: Place | None = None
    ) -> ColumnPage:
        """Nothing differs."""
        return ColumnPage(findings=(), following=None)


class Payloads:
    """What api says of payloads, over a store; counts what was read."""

    def __init__(self) -> None:
        self.store = InMemoryPayloadStore()
        self.fetched: list[str] = []

    async def stat(self, scope: Scope | None, locator: str) -> KnownPayload:
        """Whether it is there, and how large."""
        ref = PayloadRef(uri=locator, sha256=locator[-64:], media_type="application/json", bytes=0)
        stored = await self.store.stat(ref)
        if stored is None:
            raise NotFound("payload", locator)
        known = PayloadRef(uri=locator, sha256=ref.sha256, media_type=ref.media_type, bytes=stored.bytes)
        return KnownPayload(ref=known, stored_at=None, reference=None)

    async def fetch(self, scope: Scope | None, locator: str) -> FetchedPayload:
        """Its bytes."""
        self.fetched.append(locator[-64:])
        known = await self.stat(scope, locator)
        return FetchedPayload(payload=known, chunks=self.store.stream(known.ref))


class Scene:
    """One execution whose calls have some results."""

    def __init__(self, *refs: PayloadRef) -> None:
        self.history = History().add(initialized())
        for place, ref in enumerate(refs, start=1):
            call = issued(self.history, "call", activation=place)
            reference = {"uri": ref.uri, "sha256": ref.sha256, "media_type": ref.media_type, "bytes": ref.bytes}
            told = {"status": "ok", "reference": reference, "parent_ref": None, "context": {}}
            result = replace(done(call), result=told)
            self.history.add(call, claimed(call), started(call), result, completed(call))
        self.log = HistoryLog(self.history)
        self.evidence = Evidence(self.history)
        self.payloads = Payloads()

    async def verify(self, directory: Path | None, *, max_payload_bytes: int = TWO_MIB) -> Made:
        """Project the history, verify it, and write the evidence."""
        await self.payloads.store.put(
            tenant_id="default", organization_id="default", data=b"{}", media_type="application/json"
        )
        await self.evidence.store.write([projected(self.history)])
        clients: Any = SimpleNamespace(
            replay=Replays(), evidence=self.evidence, payloads=self.payloads, events=self.log
        )
        options = Options(execution_id=EXECUTION, max_payload_bytes=max_payload_bytes, wait_seconds=0)
        with new_bundle(directory) as writer:
            return await make_bundle(clients, options, writer)


def ref_to(data: bytes, organization_id: str = "default") -> PayloadRef:
    """What refers to these bytes."""
    return refer_to(data, tenant_id="default", organization_id=organization_id, media_type="application/json")


async def keep(scene: Scene, data: bytes) -> None:
    """Store a payload where the execution looks for it."""
    await scene.payloads.store.put(
        tenant_id="default", organization_id="default", data=data, media_type="application/json"
    )
