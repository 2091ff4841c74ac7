"""The shape of every row: names, types and identities, for tables, readers and other languages alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from noetl_core.canonical import JsonObject
from noetl_core.errors import Corrupt

FORMAT: Final = 1
"""Grows when rows of the same history become others: checksums of two formats are not compared."""

Row = Mapping[str, Any]
"""A flat object of JSON values. None and empty text are left out; zero, false and empty containers are facts."""


class Surface(StrEnum):
    """The six surfaces, in the order in which documents list them."""

    EXECUTION = "execution"
    STAGES = "stages"
    FRAMES = "frames"
    COMMANDS = "commands"
    BUSINESS_OBJECTS = "business_objects"
    LOOPS = "loops"


class Kind(StrEnum):
    """What the value of a field is."""

    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    TIME = "time"
    """RFC 3339 text in UTC with microseconds, as everywhere."""
    ID = "id"
    """The digits of a 64-bit id, as text."""
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The fields of a surface's rows, and which of them say whose row it is."""

    identity: tuple[str, ...]
    required: Mapping[str, Kind]
    optional: Mapping[str, Kind]

    @property
    def fields(self) -> Mapping[str, Kind]:
        """All of them."""
        return {**self.required, **self.optional}


T, I, B, W, N, J = Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN, Kind.TIME, Kind.ID, Kind.JSON  # noqa: E741 - a legend

SHAPES: Final[Mapping[Surface, Shape]] = {
    Surface.EXECUTION: Shape(
        identity=("execution_id",),
        required={
            "execution_id": N, "tenant_id": T, "organization_id": T, "version": I, "status": T, "start_time": W,
            "state": J, "stream_version": I, "last_event_id": N, "last_event_type": T, "event_time_watermark": W,
            "unknown_events": I,
        },
        optional={
            "path": T, "catalog_id": T, "parent_execution_id": N, "last_node_name": T, "end_time": W, "error": J,
        },
    ),
    Surface.STAGES: Shape(
        identity=("stage_id",),
        required={
            "stage_id": T, "execution_id": N, "step": T, "activation": I, "loop_id": T, "kind": T, "status": T,
            "total": I, "max_in_flight": I, "frame_count": I, "frame_policy": J, "stream_version": I,
        },
        optional={
            "engine": T, "pool": T, "dsl_ref": T, "parent_stage_id": T, "parent_event_id": N, "opened_event_id": N,
            "closed_event_id": N, "started_at": W, "ended_at": W,
        },
    ),
    Surface.FRAMES: Shape(
        identity=("frame_id",),
        required={
            "frame_id": T, "stage_id": T, "execution_id": N, "step": T, "frame_index": I, "status": T, "cursor": J,
            "row_count": I, "attempts": I, "aggregate_version": I, "stream_version": I,
        },
        optional={
            "parent_frame_id": T, "owner_worker": T, "lease_until": W, "claimed_event_id": N, "terminal_event_id": N,
            "output_ref": J, "success": I, "failed": I, "breaks": I, "created_at": W, "started_at": W,
            "completed_at": W,
        },
    ),
    Surface.COMMANDS: Shape(
        identity=("command_id",),
        required={
            "command_id": T, "execution_id": N, "step": T, "activation": I, "attempt": I, "status": T,
            "aggregate_version": I, "issued_at": W, "issued_version": I, "internal": B, "stream_version": I,
        },
        optional={
            "pool": T, "cause_step": T, "worker_id": T, "lease_until": W, "loop_id": T, "loop_iteration_index": I,
            "stage_id": T, "child_execution_id": N, "deadline": W, "ended_at": W, "terminal_event_id": N, "trace": T,
        },
    ),
    Surface.BUSINESS_OBJECTS: Shape(
        identity=("object_type", "object_id"),
        required={
            "object_type": T, "object_id": T, "execution_id": N, "status": T, "version": I, "attributes": J,
            "deleted": B, "created_event_id": N, "last_event_id": N, "last_event_type": T, "created_at": W,
            "updated_at": W, "payload_refs": I, "overflows": I, "stream_version": I,
        },
        optional={
            "deleted_event_id": N, "payload_ref": J, "derived_from": J, "causation_id": T, "correlation_id": T,
            "producer": T,
        },
    ),
    Surface.LOOPS: Shape(
        identity=("loop_id",),
        required={
            "loop_id": T, "execution_id": N, "step": T, "activation": I, "status": T, "total": I, "begun": I,
            "success": I, "failed": I, "breaks": I, "frame_count": I, "started_version": I, "stream_version": I,
        },
        optional={
            "mode": T, "max_in_flight": I, "stage_id": T, "collection_ref": J, "first_error": J, "done_event_id": N,
        },
    ),
}  # fmt: skip

_TYPES: Final[Mapping[Kind, type]] = {T: str, W: str, N: str, I: int, B: bool}


def _named(surface: Surface, row: Row) -> str:
    key = "/".join(str(row.get(name)) for name in SHAPES[surface].identity)
    return f"the row {key} of {surface}"


def key_of(surface: Surface, row: Row) -> str:
    """The identity of a row as one text; types of business objects have no slash, so no two rows share one."""
    return "/".join(row[name] for name in SHAPES[surface].identity)


def without_absent(fields: Mapping[str, Any]) -> JsonObject:
    """A row: absence is told by leaving out, in documents as by NULL in tables."""
    return {name: value for name, value in fields.items() if value is not None and value != ""}


OWNER_FIELDS: Final = ("tenant_id", "organization_id")
"""Only the execution's own row has them; another one is shown with them if it is stored for somebody else."""
UNREADABLE: Final = "unreadable"
"""In place of the fields of a row whose columns hold what no row can: why nobody can read it."""


def check_row(surface: Surface, row: Row) -> None:
    """Refuse a row that is not of its surface's shape: a field too many, one too few, or one of another type."""
    shape = SHAPES[surface]
    fields = shape.fields
    if UNREADABLE in row:
        raise Corrupt(f"{_named(surface, row)} cannot be read: {row[UNREADABLE]}")
    if surface is not Surface.EXECUTION and any(name in row for name in OWNER_FIELDS):
        owner = "/".join(str(row.get(name)) for name in OWNER_FIELDS)
        raise Corrupt(f"{_named(surface, row)} is stored for {owner}, and its execution is not theirs")
    if unknown := sorted(row.keys() - fields.keys()):
        raise Corrupt(f"a row of {surface} has unknown fields: {', '.join(unknown)}")
    if missing := sorted(shape.required.keys() - row.keys()):
        raise Corrupt(f"a row of {surface} lacks {', '.join(missing)}")
    for name, value in row.items():
        kind = fields[name]
        wanted = _TYPES.get(kind)
        if value is None or value == "" or (wanted is not None and type(value) is not wanted):
            raise Corrupt(f"{name!r} of a row of {surface} is {type(value).__name__}, not {kind}")
