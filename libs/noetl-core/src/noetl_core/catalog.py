"""Every event type that NoETL writes: its name, its dataclass, and what the log must know about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, TypeVar, cast

from noetl_core.envelope import EXECUTION_AGGREGATE, Draft, Envelope
from noetl_core.errors import Corrupt
from noetl_core.nodes import node_of, step_of

RESERVED_PREFIXES = (
    "batch.", "call.", "checkpoint.", "child.", "command.", "ctx.", "deadline.", "execution.", "frame.",
    "loop.", "payload.", "playbook.", "stage.", "step.", "worker.", "workflow.",
)  # fmt: skip
"""Names that only NoETL's own services may write; everything else belongs to users."""

_ENVELOPE_FIELDS = {
    "step": "node_name",
    "command_id": "command_id",
    "stage_id": "stage_id",
    "frame_id": "frame_id",
    "result": "result",
}
"""Fields of event dataclasses that live in the envelope; all others live in `meta`. A step is told by its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpec:
    """What is known about an event type without looking at an event."""

    name: str
    payload: type
    aggregate_type: str
    terminal: bool
    after_end: bool
    schema_version: int


_BY_NAME: dict[str, EventSpec] = {}
_BY_CLASS: dict[type, EventSpec] = {}
_TERMINAL: set[str] = set()
_AFTER_END: set[str] = set()

EventClass = TypeVar("EventClass", bound=type)


class event_type:  # noqa: N801 - reads as a declaration: @event_type("command.issued")
    """Declares a frozen dataclass to be the content of an event type."""

    def __init__(
        self,
        name: str,
        *,
        aggregate_type: str = EXECUTION_AGGREGATE,
        terminal: bool = False,
        after_end: bool = False,
        schema_version: int = 1,
    ) -> None:
        self._options: dict[str, Any] = {
            "name": name,
            "aggregate_type": aggregate_type,
            "terminal": terminal,
            "after_end": after_end,
            "schema_version": schema_version,
        }

    def __call__(self, payload: EventClass) -> EventClass:
        spec = EventSpec(payload=payload, **self._options)
        if spec.name in _BY_NAME:
            raise ValueError(f"event type {spec.name!r} is declared twice")
        _BY_NAME[spec.name] = spec
        _BY_CLASS[payload] = spec
        if spec.terminal:
            _TERMINAL.add(spec.name)
        if spec.after_end:
            _AFTER_END.add(spec.name)
        return payload


def spec_of(content: object) -> EventSpec:
    """The declaration of a typed event."""
    return _BY_CLASS[type(content)]


def known_types() -> Mapping[str, EventSpec]:
    """Every declared type, by name."""
    return dict(_BY_NAME)


def is_terminal(name: str) -> bool:
    """Whether an event of this type ends its execution."""
    return name in _TERMINAL


def is_allowed_after_end(name: str) -> bool:
    """Whether an event of this type may follow the terminal one."""
    return name in _AFTER_END


def is_reserved(name: str) -> bool:
    """Whether users may not write events of this type."""
    return name.startswith(RESERVED_PREFIXES)


def to_draft(content: object, *, idempotency_key: str, **envelope: Any) -> Draft:
    """The draft that carries a typed event; fields that the envelope has go there, the others into `meta`."""
    spec = spec_of(content)
    values: dict[str, Any] = {}
    meta: dict[str, Any] = dict(envelope.pop("meta", {}))
    payload_ref = getattr(content, "payload_ref", None)
    for name in _field_names(spec.payload):
        value = getattr(content, name)
        if name in _ENVELOPE_FIELDS:
            values[_ENVELOPE_FIELDS[name]] = value
        elif name != "payload_ref" and value is not None:
            meta[name] = list(value) if isinstance(value, tuple) else value
    if getattr(content, "pipeline", None):
        values["node_name"] = node_of(values["node_name"], pipeline=True)
    if spec.aggregate_type != EXECUTION_AGGREGATE:
        values["aggregate_id"] = values[f"{spec.aggregate_type}_id"]
    return Draft(
        event_type=spec.name,
        schema_version=spec.schema_version,
        aggregate_type=spec.aggregate_type,
        idempotency_key=idempotency_key,
        payload_ref=payload_ref,
        meta=meta,
        **values,
        **envelope,
    )


def typed(envelope: Envelope) -> object | None:
    """The typed content of an event, or None if this release does not know its type or version."""
    spec = _BY_NAME.get(envelope.event_type)
    if spec is None or spec.schema_version != envelope.schema_version:
        return None
    meta = envelope.meta
    values: dict[str, Any] = {}
    for name, in_envelope, is_needed in _places(spec.payload):
        if in_envelope:
            values[name] = getattr(envelope, in_envelope)
        elif name in meta:
            value = meta[name]
            values[name] = tuple(value) if isinstance(value, list) else value
        elif is_needed:
            raise Corrupt(f"{envelope.event_type} {envelope.event_id} lacks {name!r}")
    if "step" in values:
        values["step"] = step_of(envelope.node_name, meta)
    return cast("object", spec.payload(**values))


@cache
def _places(payload: type) -> tuple[tuple[str, str, bool], ...]:
    """Of each field: its name, the field of the envelope that has it (none: `meta`), and whether it must be there."""
    held = {**_ENVELOPE_FIELDS, "payload_ref": "payload_ref"}
    return tuple(
        (one.name, held.get(one.name, ""), one.default is MISSING and one.default_factory is MISSING)
        for one in fields(payload)
    )


@cache
def _field_names(payload: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(payload))
