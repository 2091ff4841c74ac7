"""An outcome on its way into the log: its bytes, what an event says about it, and what stands for a large one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from noetl_core.canonical import JsonObject, JsonValue, encode, sha256_hex
from noetl_core.collection.documents import MAX_HEADER_BYTES, holds_digests, json_media_type
from noetl_core.errors import LocatorInvalid, NotCanonical
from noetl_core.ids import ExecutionId
from noetl_core.locator import payload_locator, result_locator
from noetl_core.playbook.large_results import LargeResult, LargeView, compact_view
from noetl_core.playbook.outputs import Kept, seen
from noetl_core.playbook.selection import ResultPath
from noetl_core.ports.tables import Tables
from noetl_servicekit.stored_values import MEDIA_TYPE, EncodedValue, encode_value

from noetl_worker.application.credential_names import without_credentials
from noetl_worker.application.event_result import ContextTooLarge, describe, facts_of, has_unread_facts
from noetl_worker.application.outcome import ErrorKind, Outcome

MAX_SOON_SPELT: Final = 256
"""How many values, or sixteens of characters, an outcome may have that is spelt at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPlace:
    """Whose result it is, and of which step."""

    tenant_id: str
    organization_id: str
    execution_id: ExecutionId
    step: str


@dataclass(frozen=True, slots=True)
class Read:
    """What control expressions read of a result, and of what is known about its call."""

    control_paths: Collection[ResultPath] = ()
    fact_paths: Collection[ResultPath] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
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


def prepare(place: ResultPlace, outcome: Outcome, read: Read, kept: Kept, tables: Tables) -> Prepared:
    """What is stored and told of an outcome; what cannot be told is an error that can."""
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
        return Prepared(
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
        return Prepared(outcome=refused, body=body, context=context)


def is_soon_spelt(outcome: Outcome) -> bool:
    """Whether preparing it takes less than handing it to a thread would; looks at a few values only."""
    waiting: list[object] = [outcome.data, outcome.py, outcome.http]
    left = MAX_SOON_SPELT
    while waiting:
        value = waiting.pop()
        left -= 1
        if isinstance(value, str):
            left -= len(value) // 16
        elif type(value) is dict:
            left -= len(value)
            waiting += value.values() if left >= 0 else ()
        elif type(value) is list:
            left -= len(value)
            waiting += value if left >= 0 else ()
        elif value is not None and not isinstance(value, int | float):
            return False  # a view, or rows that are somewhere else
        if left < 0:
            return False
    return True


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
    ref = ref_id(place, sha256) or str(
        payload_locator(tenant_id=place.tenant_id, organization_id=place.organization_id, sha256=sha256)
    )
    view = compact_view(result, ref=ref, sha256=sha256, size_bytes=len(body.data), kept=kept)
    return LargeView.of(result, view, kept, body.index())


def _without_credentials(outcome: Outcome) -> Outcome:
    if outcome.error is None:
        return outcome
    return replace(outcome, error=replace(outcome.error, message=without_credentials(outcome.error.message)))


def ref_id(place: ResultPlace, sha256: str) -> str | None:
    """The name of a result, if its step can be part of one."""
    try:
        return str(result_locator(execution_id=place.execution_id, step=place.step, result_id=sha256[:16]))
    except LocatorInvalid:  # a step may be called `..`, a segment may not
        return None
