"""The documents of an evidence bundle: what each of them says, and its strict shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from noetl_core.canonical import JsonObject, encode, sha256_hex
from noetl_core.evidence import strict
from noetl_core.ports.live_rows import ExecutionColumns
from noetl_core.replay.history import Replayed
from noetl_core.sharding import MAX_SHARD_COUNT
from noetl_core.surfaces.checksums import in_order, surface_checksum, total_checksum
from noetl_core.surfaces.shapes import FORMAT, Row, Surface, key_of
from noetl_core.surfaces.surface_fold import Rows
from noetl_core.timestamps import format_time, parse_time

SCHEMA: Final = 3
"""Of a bundle and of all its documents; it grows with the fields of any.

2: live rows tell their registry. 3: payloads are listed by address, and live rows tell columns beside them.
"""
READABLE: Final = (1, 2, SCHEMA)
"""Bundles are kept for years: those of earlier versions are judged by what they say."""
ADAPTER: Final = "noetl.projection.v1.ProjectionService/ListRows"
"""Where live rows come from; another store would name another."""
STATUSES: Final = ("verified", "present", "missing", "corrupt")
RESOLVED: Final = frozenset({"verified", "present"})

_ROWS = strict.by_surface(strict.listing(strict.one_object))
_COUNTS = strict.by_surface(strict.count)
_SUMS = strict.by_surface(strict.sha256)
_FINDING = strict.one_object
_COLUMNS = strict.fields(
    shard=strict.integer,
    shard_count=strict.count_to(MAX_SHARD_COUNT),
    next_deadline=strict.nothing_or(strict.time),
)


def _shapes(schema: int) -> Mapping[str, strict.Spec]:
    registry = {"upcasters": strict.told_sha256} if schema > 1 else {}
    columns = {"columns": strict.nothing_or(_COLUMNS)} if schema > 2 else {}
    return {
        "replay": strict.fields(
            schema_version=strict.only(schema),
            format=strict.count,
            checksum_algorithm=strict.only("sha256"),
            execution_id=strict.digits,
            tenant_id=strict.text,
            organization_id=strict.text,
            stream_version=strict.count,
            event_id=strict.digits,
            event_checksum=strict.sha256,
            reached_at=strict.time,
            upcasters=strict.sha256,
            projection_checksums=_SUMS,
            row_counts=_COUNTS,
            checksum=strict.sha256,
            payload_root=strict.sha256,
            payload_count=strict.count,
            rows=_ROWS,
            payloads=strict.listing(
                strict.fields(
                    sha256=strict.sha256,
                    uri=strict.text,
                    media_type=strict.text,
                    uses=strict.count,
                    status=strict.only(*STATUSES),
                    stored_bytes=strict.count,
                    included=strict.boolean,
                )
            ),
            payload_summary=strict.fields(
                total=strict.count,
                verified=strict.count,
                present=strict.count,
                missing=strict.count,
                corrupt=strict.count,
                all_resolved=strict.boolean,
                checksum=strict.sha256,
            ),
        ),
        "live_rows": strict.fields(
            schema_version=strict.only(schema),
            adapter=strict.only(ADAPTER),
            scope=strict.fields(
                tenant_id=strict.text,
                organization_id=strict.text,
                execution_id=strict.digits,
                projection=strict.only("all"),
                stream_version=strict.count,
            ),
            exported_at=strict.time,
            **registry,
            **columns,
            rows=_ROWS,
            row_counts=_COUNTS,
            rows_checksum=strict.sha256,
        ),
        "live_checksums": strict.fields(
            schema_version=strict.only(schema),
            format=strict.count,
            execution_id=strict.digits,
            stream_version=strict.count,
            **registry,
            projection_checksums=_SUMS,
            row_counts=_COUNTS,
            checksum=strict.sha256,
            rows_checksum=strict.sha256,
        ),
        "report": strict.fields(
            schema_version=strict.only(schema),
            proved=strict.boolean,
            verdict=strict.one_object,
            findings=strict.listing(_FINDING),
        ),
    }


SHAPES: Final[Mapping[int, Mapping[str, strict.Spec]]] = {schema: _shapes(schema) for schema in READABLE}
"""Of documents by their role, in bundles of each version."""


def replay_document(replayed: Replayed, payloads: Sequence[JsonObject], *, schema: int = SCHEMA) -> JsonObject:
    """A state with its rows, its checksums, and what became of every payload that its history refers to."""
    execution = replayed.state.execution
    document: Any = replayed.checksums()
    return {
        "schema_version": schema,
        "format": FORMAT,
        "checksum_algorithm": "sha256",
        "execution_id": str(execution.execution_id),
        "tenant_id": execution.tenant_id,
        "organization_id": execution.organization_id,
        "stream_version": replayed.state.stream_version,
        "event_id": str(replayed.state.last_event_id),
        "event_checksum": replayed.checksum,
        "reached_at": format_time(replayed.reached_at) if replayed.reached_at is not None else "",
        "upcasters": replayed.upcasters,
        "projection_checksums": document["surfaces"],
        "row_counts": document["rows"],
        "checksum": document["checksum"],
        "payload_root": replayed.payloads.root(),
        "payload_count": len(replayed.payloads),
        "rows": rows_document(replayed.rows),
        "payloads": [*payloads],
        "payload_summary": payload_summary(payloads),
    }


def payload_summary(payloads: Iterable[Mapping[str, Any]]) -> JsonObject:
    """How many of each status, and one checksum over digests and statuses."""
    told = [(str(one["sha256"]), str(one["status"])) for one in payloads]
    counts: JsonObject = {status: sum(1 for _, one in told if one == status) for status in STATUSES}
    return {
        "total": len(told),
        **counts,
        "all_resolved": all(status in RESOLVED for _, status in told),
        "checksum": sha256_hex(encode([[digest, status] for digest, status in told])),
    }


def live_rows_document(
    rows: Rows,
    *,
    tenant_id: str,
    organization_id: str,
    execution_id: int,
    version: int,
    upcasters: str,
    columns: ExecutionColumns | None,
    shard_count: int,
    exported_at: datetime,
) -> JsonObject:
    """Rows as a store holds them, in a form that any store can export."""
    document = rows_document(rows)
    return {
        "schema_version": SCHEMA,
        "adapter": ADAPTER,
        "scope": {
            "tenant_id": tenant_id,
            "organization_id": organization_id,
            "execution_id": str(execution_id),
            "projection": "all",
            "stream_version": version,
        },
        "exported_at": format_time(exported_at),
        "upcasters": upcasters,
        "columns": _columns_document(columns, shard_count),
        "rows": document,
        "row_counts": {str(surface): len(rows[surface]) for surface in Surface},
        "rows_checksum": sha256_hex(encode(document)),
    }


def columns_of(document: Mapping[str, Any] | None) -> tuple[ExecutionColumns | None, int]:
    """Columns of an execution and the number of shards, as live rows tell them."""
    if document is None:
        return None, 0
    deadline = document["next_deadline"]
    columns = ExecutionColumns(
        shard=document["shard"], next_deadline=None if deadline is None else parse_time(deadline)
    )
    return columns, document["shard_count"]


def _columns_document(columns: ExecutionColumns | None, shard_count: int) -> JsonObject | None:
    if columns is None:
        return None
    deadline = columns.next_deadline
    return {
        "shard": columns.shard,
        "shard_count": shard_count,
        "next_deadline": None if deadline is None else format_time(deadline),
    }


def live_checksums_document(live_rows: Mapping[str, Any]) -> JsonObject:
    """Checksums of exported rows, from nothing but that document."""
    rows = rows_of(live_rows["rows"])
    surfaces: JsonObject = {str(surface): surface_checksum(rows[surface]) for surface in Surface}
    registry = {"upcasters": live_rows["upcasters"]} if "upcasters" in live_rows else {}
    return {
        "schema_version": live_rows["schema_version"],
        "format": FORMAT,
        **registry,
        "execution_id": live_rows["scope"]["execution_id"],
        "stream_version": live_rows["scope"]["stream_version"],
        "projection_checksums": surfaces,
        "row_counts": live_rows["row_counts"],
        "checksum": total_checksum(surfaces),
        "rows_checksum": live_rows["rows_checksum"],
    }


def rows_document(rows: Rows) -> JsonObject:
    """Rows by surface, in the order in which they count."""
    return {str(surface): [dict(rows[surface][key]) for key in in_order(rows.get(surface, {}))] for surface in Surface}


def rows_of(document: Mapping[str, Any]) -> dict[Surface, dict[str, Row]]:
    """Rows by surface and key; of two with one key the last counts, which a comparison of numbers notices."""
    return {surface: {key_of(surface, row): row for row in document[surface]} for surface in Surface}
