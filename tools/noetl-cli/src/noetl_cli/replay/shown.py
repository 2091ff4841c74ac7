"""Replayed states and differences, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from noetl_contracts.clients import ReplayedState
from noetl_core.replay.differences import ABSENT, RowDifference
from noetl_core.surfaces.checksums import in_order
from noetl_core.surfaces.shapes import Surface
from noetl_core.timestamps import format_time

from noetl_cli.shown.tables import table_lines

_LONGEST_VALUE = 60


def state_document(state: ReplayedState, *, resolved: bool) -> dict[str, Any]:
    """Everything that is known of a state; rows are those that were asked for."""
    payloads = [
        {
            "sha256": one.sha256,
            "uri": one.uri,
            "media_type": one.media_type or None,
            "uses": one.uses,
            "status": one.status,
            "stored_bytes": one.stored_bytes,
        }
        for one in state.payloads
    ]
    return {
        **point_document(state),
        "rows": {str(surface): [rows[key] for key in in_order(rows)] for surface, rows in state.rows.items() if rows},
        **({"payloads": payloads} if resolved else {}),
    }


def point_document(state: ReplayedState) -> dict[str, Any]:
    """Which state it is, and its checksums."""
    return {
        "execution_id": str(state.execution_id),
        "tenant_id": state.tenant_id,
        "organization_id": state.organization_id,
        "stream_version": state.stream_version,
        "event_id": state.event_id,
        "reached_at": format_time(state.reached_at),
        "event_checksum": state.event_checksum,
        "head_version": state.head_version,
        "format": state.format,
        "upcasters": state.upcasters,
        "code_version": state.code_version or None,
        "snapshot_version": state.snapshot_version,
        "projection_checksums": {str(surface): state.surfaces[surface] for surface in Surface},
        "row_counts": {str(surface): state.row_counts[surface] for surface in Surface},
        "checksum": state.checksum,
        "payload_root": state.payload_root,
        "payload_count": state.payload_count,
    }


def state_lines(state: ReplayedState, *, resolved: bool) -> Iterator[str]:
    """What people want to see first, and the rows below it."""
    yield _point_line(state)
    yield f"checksum {state.checksum}, payloads {state.payload_root[:12]} ({state.payload_count})"
    counts = [("SURFACE", "ROWS", "CHECKSUM")]
    counts += [(str(one), str(state.row_counts[one]), state.surfaces[one]) for one in Surface]
    yield from table_lines(counts)
    for surface, rows in state.rows.items():
        if not rows:
            continue
        yield ""
        if surface is Surface.EXECUTION:
            yield from _execution_lines(next(iter(rows.values())))
            continue
        table = [("KEY", "STEP", "STATUS", "WHAT")]
        table += [_row_cells(surface, key, rows[key]) for key in in_order(rows)]
        yield from table_lines([(str(surface).upper(), *table[0][1:]), *table[1:]])
    if resolved:
        yield ""
        table = [("PAYLOAD", "USES", "BYTES", "STATUS")]
        table += [(one.sha256, str(one.uses), str(one.stored_bytes), one.status) for one in state.payloads]
        yield from table_lines(table)


def difference_lines(before: ReplayedState, after: ReplayedState, found: Iterable[RowDifference]) -> Iterator[str]:
    """What came, what went, and what became of the rest."""
    yield f"from {_point_line(before)}"
    yield f"to   {_point_line(after)}"
    nothing = True
    for one in found:
        nothing = False
        sign = {"added": "+", "removed": "-", "changed": "~"}[one.kind]
        row = one.after or one.before or {}
        yield f"{sign} {one.surface} {one.key} {row.get('step', '')} {row.get('status', '')}".rstrip()
        if one.kind == "changed":
            for name, old, new in one.fields():
                yield f"    {name}: {_side(old)} -> {_side(new)}"
    if nothing:
        yield "nothing differs"


def _point_line(state: ReplayedState) -> str:
    where = f"version {state.stream_version} of {state.head_version}"
    return f"execution {state.execution_id} at {where}, {format_time(state.reached_at)}"


def _execution_lines(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"{row.get('path', '')} {row['status']}, last event {row['last_event_type']}"
    steps = row["state"].get("steps", {})
    table = [("STEP", "STATUS", "ACTIVATION")]
    table += [(name, step["status"], str(step.get("activation", 0))) for name, step in steps.items()]
    yield from table_lines(table) if steps else []
    for name, value in row["state"].get("variables", {}).items():
        yield f"ctx.{name} = {_value(value)}"
    if "error" in row:
        yield f"error: {_value(row['error'])}"


def _row_cells(surface: Surface, key: str, row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    match surface:
        case Surface.COMMANDS:
            what = f"activation {row['activation']}, attempt {row['attempt']}, {row.get('worker_id', 'no worker')}"
        case Surface.LOOPS:
            what = f"{row['success'] + row['failed']} of {row['total']} ended, {row['failed']} failed"
        case Surface.STAGES:
            what = f"{row['frame_count']} frames over {row['total']} rows"
        case Surface.FRAMES:
            what = f"rows {row['cursor']['start']} to {row['cursor']['stop']}, attempt {row['attempts']}"
        case _:
            what = f"version {row['version']} {_value(row.get('attributes'))}"
    return key, str(row.get("step", "")), str(row["status"]), what


def _side(value: Any) -> str:
    """A value of a difference: what is not there, null, and texts that look like other values are told apart."""
    if value is ABSENT:
        return "(absent)"
    if value is None:
        return "null"
    if isinstance(value, str) and _reads_as_json(value):
        return json.dumps(value, ensure_ascii=False)
    return _value(value)


def _reads_as_json(text: str) -> bool:
    if len(text) > _LONGEST_VALUE:  # it is cut off
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _value(value: Any) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
