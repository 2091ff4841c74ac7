"""The only way out of a tool: the bytes of its result are stored first, and the event has a reference to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Literal

from noetl_core.canonical import JsonObject
from noetl_core.collection.documents import HOLDS, json_media_type
from noetl_core.errors import NoetlError
from noetl_core.payload_hints import IPC
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.call_facts import FACTS
from noetl_core.playbook.outputs import PLAINLY_KEPT, Kept
from noetl_core.playbook.selection import ResultPath
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE, PayloadStore
from noetl_core.ports.tables import EncodedTable, Tables
from noetl_servicekit.stored_values import MAX_BYTES_AT_ONCE, MEDIA_TYPE

from noetl_worker.application.event_result import EventResult, Proof
from noetl_worker.application.outcome import ErrorKind, Outcome, OutcomeMeta
from noetl_worker.application.patience import pauses
from noetl_worker.application.prepared_result import Read, ResultPlace, is_soon_spelt, prepare, ref_id, told_alone
from noetl_worker.application.recently_stored import RecentlyStored, SmallPayload

__all__ = [
    "PersistBeforeEmit",
    "ResultPlace",
    "failed_result",
    "failed_with",
    "lost_result",
    "nothing_stored",
    "told_alone",
]

_STORED: Final = Proof()
RETRY_DELAYS_SECONDS: Final = pauses()
"""Pauses between attempts to store; a store that is away for longer fails the call, which may be retried."""


class PersistBeforeEmit:
    """Outcome in, `result` of an event out; in between, the bytes become durable."""

    def __init__(
        self,
        store: PayloadStore,
        tables: Tables,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        retry_delays_seconds: Sequence[float] = RETRY_DELAYS_SECONDS,
    ) -> None:
        self._store = store
        self._tables = tables
        self._sleep = sleep
        self._retry_delays_seconds = tuple(retry_delays_seconds)
        self._recent = RecentlyStored(clock=clock)

    async def __call__(
        self,
        place: ResultPlace,
        outcome: Outcome,
        *,
        control_paths: Collection[ResultPath] = (),
        fact_paths: Collection[ResultPath] = (),
        parent_ref_id: str | None = None,
        kept: Kept = PLAINLY_KEPT,
    ) -> EventResult:
        """The event's result; its status may be an error although the outcome was none.

        That is so when the result cannot be written as JSON, or cannot be stored.
        """
        read = Read(control_paths, fact_paths)
        if is_soon_spelt(outcome):
            prepared = prepare(place, outcome, read, kept, self._tables)
        else:  # in a thread: leases must be kept up meanwhile
            prepared = await asyncio.to_thread(prepare, place, outcome, read, kept, self._tables)
        outcome, context = prepared.outcome, prepared.context
        reference: JsonObject | None = None
        try:
            view = None if prepared.view is None else await self.put(place, prepared.view, media_type=MEDIA_TYPE)
            ref = await self.put(place, prepared.body.data, media_type=prepared.media_type)
            reference = _reference(place, ref, kept=kept, view=view, table=prepared.body.table)
            if prepared.table_holds:
                reference[HOLDS] = True
            if prepared.facts is not None:
                facts = await self.put(place, prepared.facts, media_type=MEDIA_TYPE)
                reference[FACTS] = {"sha256": facts.sha256, "bytes": facts.bytes}
        except NoetlError as exc:
            prepared = prepare(place, lost_result(exc.message, outcome.meta), Read(), kept, self._tables)
            outcome, context = prepared.outcome, prepared.context
        return EventResult(
            status=outcome.status,
            reference=reference,
            parent_ref=None if parent_ref_id is None else {"ref_id": parent_ref_id},
            context=context,
            proof=_STORED,
        )

    async def rows(
        self, place: ResultPlace, bodies: Sequence[bytes], *, context: JsonObject, parent_ref_id: str | None
    ) -> EventResult:
        """The outcomes of a frame's rows, spelt one by one (`told_alone`), as one payload.

        Raises what kept them from being stored.
        """
        body = b"[" + b",".join(bodies) + b"]"
        ref = await self.put(place, body)
        return EventResult(
            status="ok",
            reference=_reference(place, ref, kept=PLAINLY_KEPT, view=None, table=None),
            parent_ref=None if parent_ref_id is None else {"ref_id": parent_ref_id},
            context={**context, "size_bytes": len(body)},
            proof=_STORED,
        )

    async def put(self, place: ResultPlace, body: bytes, *, media_type: str = "") -> PayloadRef:
        """Store bytes, JSON if nothing else is said, again and again for a while; raises what kept them from that."""
        if not media_type:
            few = len(body) <= MAX_BYTES_AT_ONCE
            media_type = json_media_type(body) if few else await asyncio.to_thread(json_media_type, body)
        payload = SmallPayload(place.tenant_id, place.organization_id, media_type, body)
        known = self._recent.find(payload)
        if known is not None:
            return known
        delays = iter(self._retry_delays_seconds)
        while True:
            asked_at = self._recent.clock()
            try:
                ref = await self._store.put(
                    tenant_id=place.tenant_id,
                    organization_id=place.organization_id,
                    data=body,
                    media_type=media_type,
                )
            except NoetlError as exc:
                delay = next(delays, None)
                if delay is None or not exc.retryable:
                    raise
                await self._sleep(delay)
            else:
                self._recent.add(payload, ref, asked_at=asked_at)
                return ref


def _reference(
    place: ResultPlace, ref: PayloadRef, *, kept: Kept, view: PayloadRef | None, table: EncodedTable | None
) -> JsonObject:
    reference: JsonObject = {
        "ref_id": ref_id(place, ref.sha256) or ref.uri,
        "type": "object_store",
        "uri": ref.uri,
        "sha256": ref.sha256,
        "media_type": ref.media_type,
        "bytes": ref.bytes,
    }
    if table is not None:
        reference |= {"row_count": table.facts.row_count, "schema_digest": table.facts.schema_digest}
    if view is not None:
        reference["view"] = {"sha256": view.sha256, "bytes": view.bytes}
    if kept.store is not None:
        reference["store"] = kept.store
    if kept.scope is not None:
        reference["scope"] = kept.scope.value
    if ref.hint is not None:
        reference[IPC] = ref.hint.to_json()
    return reference


def lost_result(reason: str, meta: OutcomeMeta) -> Outcome:
    """What the outcome of a call becomes whose bytes could not be stored."""
    return Outcome.failed(
        kind=ErrorKind.STORAGE_ACCESS,
        code=REFERENCE_NOT_AVAILABLE,
        message=f"the result could not be stored: {reason}"[:1000],
        retryable=True,
        meta=meta,
    )


def failed_result(error: NoetlError, *, retryable: bool | None = None) -> EventResult:
    """The result of a command that could not even be run; there are no bytes to refer to."""
    decided = error.retryable if retryable is None else retryable
    return failed_with(
        Outcome.failed(kind=ErrorKind.UNKNOWN, code=error.code, message=error.message, retryable=decided)
    )


def failed_with(outcome: Outcome, *, retryable: bool | None = None) -> EventResult:
    """The result of what failed as a whole; what the outcome kept besides its error is not stored, and not told."""
    told, _ = told_alone(outcome)
    described = told.error.to_json() if told.error else {}
    described["message"] = str(described.get("message", ""))[:1000]
    if retryable is not None:
        described["retryable"] = retryable
    return nothing_stored({"error": described}, status="error")


def nothing_stored(context: JsonObject, *, status: Literal["ok", "error"] = "ok") -> EventResult:
    """A result that refers to nothing: what there is to know of it stands in its context."""
    return EventResult(status=status, reference=None, parent_ref=None, context=context, proof=_STORED)
