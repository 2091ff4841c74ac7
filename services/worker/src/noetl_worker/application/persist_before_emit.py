"""The only way out of a tool: the bytes of its result are stored first, and the event has a reference to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace

from noetl_core.canonical import JsonObject, JsonValue, encode, sha256_hex
from noetl_core.collection.documents import HOLDS, MAX_HEADER_BYTES, holds_digests, json_media_type
from noetl_core.errors import LocatorInvalid, NoetlError, NotCanonical
from noetl_core.ids import ExecutionId
from noetl_core.locator import payload_locator, result_locator
from noetl_core.payload_hints import IPC
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.call_facts import FACTS
from noetl_core.playbook.large_results import LargeResult, LargeView, compact_view
from noetl_core.playbook.outputs import PLAINLY_KEPT, Kept, seen
from noetl_core.playbook.selection import ResultPath
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE, PayloadStore
from noetl_core.ports.tables import EncodedTable, Tables
from noetl_servicekit.stored_values import MEDIA_TYPE, EncodedValue, encode_value

from noetl_worker.application.credential_names import without_credentials
from noetl_worker.application.event_result import ContextTooLarge, EventResult, describe, facts_of, has_unread_facts
from noetl_worker.application.outcome import ErrorKind, Outcome

RETRY_DELAYS_SECONDS = (0.05, 0.2, 0.8)
"""Pauses between attempts to store; a store that is away for longer fails the call, which may be retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPlace:
    """Whose result it is, and of which step."""

    tenant_id: str
    organization_id: str
    execution_id: ExecutionId
    step: str


class PersistBeforeEmit:
    """Outcome in, `result` of an event out; in between, the bytes become durable."""

    def __init__(
        self,
        store: PayloadStore,
        tables: Tables,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        retry_delays_seconds: Sequence[float] = RETRY_DELAYS_SECONDS,
    ) -> None:
        self._store = store
        self._tables = tables
        self._sleep = sleep
        self._retry_delays_seconds = tuple(retry_delays_seconds)

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
        # In a thread: a large result takes long to spell, and leases must be kept up meanwhile.
        prepared = await asyncio.to_thread(
            _prepare, place, outcome, _Read(control_paths, fact_paths), kept, self._tables
        )
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
            lost = Outcome.failed(
                kind=ErrorKind.STORAGE_ACCESS,
                code=REFERENCE_NOT_AVAILABLE,
                message=f"the result could not be stored: {exc.message}",
                retryable=True,
                meta=outcome.meta,
            )
            prepared = _prepare(place, lost, _Read(), kept, self._tables)
            outcome, context = prepared.outcome, prepared.context
        return EventResult(
            status=outcome.status,
            reference=reference,
            parent_ref=None if parent_ref_id is None else {"ref_id": parent_ref_id},
            context=context,
        )

    async def store_told(self, place: ResultPlace, body: bytes) -> JsonObject:
        """The reference of outcomes that were spelt before; raises what kept them from being stored."""
        return _reference(place, await self.put(place, body), kept=PLAINLY_KEPT, view=None, table=None)

    async def put(self, place: ResultPlace, body: bytes, *, media_type: str = "") -> PayloadRef:
        """Store bytes, JSON if nothing else is said, again and again for a while; raises what kept them from that."""
        media_type = media_type or await asyncio.to_thread(json_media_type, body)
        delays = iter(self._retry_delays_seconds)
        while True:
            try:
                return await self._store.put(
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


@dataclass(frozen=True, slots=True)
class _Read:
    """What control expressions read of a result, and of what is known about its call."""

    control_paths: Collection[ResultPath] = ()
    fact_paths: Collection[ResultPath] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """An outcome as it can be told, its bytes, what the event says about it, and what stands for a large result."""

    outcome: Outcome
    body: EncodedValue
    context: JsonObject
    view: bytes | None = None
    facts: bytes | None = None
    """Of the call, if control expressions read more of them than the event has."""
    media_type: str = MEDIA_TYPE
    table_holds: bool = False
    """A table whose rest, beside the rows, refers to payloads."""


def _prepare(place: ResultPlace, outcome: Outcome, read: _Read, kept: Kept, tables: Tables) -> _Prepared:
    try:
        told = _without_credentials(outcome)
        result = told.result()
        body = encode_value(result, tables)
        large = _large_view(place, result, body, kept)
        shown = seen(result if large is None else LargeResult(large, result), kept)
        context = describe(
            told,
            size_bytes=len(body.data),
            control_paths=read.control_paths,
            fact_paths=read.fact_paths,
            seen=shown,
            kept=kept,
        )
        view = None if large is None else encode(large.to_json())
        is_table = body.table is not None
        return _Prepared(
            outcome=told,
            body=body,
            context=context,
            view=view,
            facts=encode(facts_of(told)) if has_unread_facts(context) else None,
            media_type=body.media_type if is_table else json_media_type(body.data),
            table_holds=is_table and holds_digests(body.data[:MAX_HEADER_BYTES]),
        )
    except (NotCanonical, ContextTooLarge) as refusal:
        code = "RESULT_NOT_JSON" if isinstance(refusal, NotCanonical) else refusal.code
        message = f"the result cannot be told: {refusal.message}"
        refused = Outcome.failed(kind=ErrorKind.SCHEMA, code=code, message=message, meta=outcome.meta)
        body = EncodedValue(data=encode(refused.result()))
        context = describe(refused, size_bytes=len(body.data), control_paths=())
        return _Prepared(outcome=refused, body=body, context=context)


def told_alone(outcome: Outcome) -> tuple[Outcome, bytes]:
    """An outcome as it can be told, and its bytes, for one that is stored together with others."""
    try:
        told = _without_credentials(outcome)
        return told, encode(told.result())
    except NotCanonical as refusal:
        message = f"the result cannot be told: {refusal.message}"
        refused = Outcome.failed(kind=ErrorKind.SCHEMA, code="RESULT_NOT_JSON", message=message, meta=outcome.meta)
        return refused, encode(refused.result())


def _large_view(place: ResultPlace, result: JsonValue, body: EncodedValue, kept: Kept) -> LargeView | None:
    """§9.2: above the limit templates see a compact view, which is stored beside the result."""
    if body.plain_bytes <= kept.inline_max_bytes:
        return None
    sha256 = sha256_hex(body.data)
    ref = _ref_id(place, sha256) or str(
        payload_locator(tenant_id=place.tenant_id, organization_id=place.organization_id, sha256=sha256)
    )
    view = compact_view(result, ref=ref, sha256=sha256, size_bytes=len(body.data), kept=kept)
    return LargeView.of(result, view, kept, body.index())


def _without_credentials(outcome: Outcome) -> Outcome:
    if outcome.error is None:
        return outcome
    return replace(outcome, error=replace(outcome.error, message=without_credentials(outcome.error.message)))


def _ref_id(place: ResultPlace, sha256: str) -> str | None:
    try:
        return str(result_locator(execution_id=place.execution_id, step=place.step, result_id=sha256[:16]))
    except LocatorInvalid:  # a step may be called `..`, a segment may not
        return None


def _reference(
    place: ResultPlace, ref: PayloadRef, *, kept: Kept, view: PayloadRef | None, table: EncodedTable | None
) -> JsonObject:
    reference: JsonObject = {
        "ref_id": _ref_id(place, ref.sha256) or ref.uri,
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
