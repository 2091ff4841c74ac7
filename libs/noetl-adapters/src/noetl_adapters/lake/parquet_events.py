"""Events as Parquet: the bytes of each, and the extracts that queries want as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from noetl_core.envelope import Envelope, StoredEvent
from noetl_core.errors import Corrupt
from noetl_core.lake.manifest import Position

_TIME: Final = pa.timestamp("us", tz="UTC")
EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field("execution_id", pa.int64(), nullable=False),
        pa.field("stream_version", pa.int64(), nullable=False),
        pa.field("event_id", pa.int64(), nullable=False),
        pa.field("organization_id", pa.string(), nullable=False),
        pa.field("event_type", pa.string(), nullable=False),
        pa.field("aggregate_type", pa.string(), nullable=False),
        pa.field("aggregate_id", pa.string(), nullable=False),
        pa.field("aggregate_version", pa.int64(), nullable=False),
        pa.field("event_time", _TIME, nullable=False),
        pa.field("ingest_time", _TIME, nullable=False),
        pa.field("node_name", pa.string()),
        pa.field("stage_id", pa.string()),
        pa.field("frame_id", pa.string()),
        pa.field("command_id", pa.string()),
        pa.field("parent_execution_id", pa.string()),
        pa.field("idempotency_key", pa.string(), nullable=False),
        pa.field("content_sha256", pa.string(), nullable=False),
        pa.field("prev_checksum", pa.string(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""The tenant is a part of the path, as readers of partitioned files expect it."""
_POSITIONS: Final = pa.schema([("execution_id", pa.int64()), ("stream_version", pa.int64()), ("checksum", pa.string())])
_PLACE: Final = ("body", "stream_version", "aggregate_version", "ingest_time", "prev_checksum", "checksum")


class ParquetEvents:
    """Port `LakeFormat`."""

    def encode_events(self, events: Sequence[StoredEvent]) -> bytes:
        """One file; equal events give equal bytes."""
        rows = [_row(event, event.envelope()) for event in events]
        return _written(pa.Table.from_pylist(rows, schema=EVENT_SCHEMA))

    def decode_events(self, data: bytes) -> list[StoredEvent]:
        """The events, from the columns that are not extracts."""
        rows = _read(data, list(_PLACE)).to_pylist()
        return [StoredEvent(**row) for row in rows]

    def encode_positions(self, positions: Mapping[int, Position]) -> bytes:
        """Versions and checksums by execution."""
        ids = sorted(positions)
        columns = [
            pa.array(ids, pa.int64()),
            pa.array([positions[one].version for one in ids], pa.int64()),
            pa.array([positions[one].checksum for one in ids], pa.string()),
        ]
        return _written(pa.Table.from_arrays(columns, schema=_POSITIONS))

    def decode_positions(self, data: bytes) -> dict[int, Position]:
        """What was encoded, by this release or by one that wrote no checksums."""
        table = _read(data, None)
        if not {"execution_id", "stream_version"} <= set(table.column_names):
            raise Corrupt(f"positions of the lake have the columns {', '.join(table.column_names)}")
        ids, versions = table["execution_id"].to_pylist(), table["stream_version"].to_pylist()
        checksums = table["checksum"].to_pylist() if "checksum" in table.column_names else [""] * len(ids)
        return {
            one: Position(version=version, checksum=checksum or "")
            for one, version, checksum in zip(ids, versions, checksums, strict=True)
        }


def _row(event: StoredEvent, envelope: Envelope) -> dict[str, Any]:
    return {
        "execution_id": envelope.execution_id,
        "stream_version": event.stream_version,
        "event_id": envelope.event_id,
        "organization_id": envelope.organization_id,
        "event_type": envelope.event_type,
        "aggregate_type": envelope.aggregate_type,
        "aggregate_id": envelope.aggregate_id,
        "aggregate_version": event.aggregate_version,
        "event_time": envelope.event_time,
        "ingest_time": event.ingest_time,
        "node_name": envelope.node_name or None,
        "stage_id": envelope.stage_id or None,
        "frame_id": envelope.frame_id or None,
        "command_id": envelope.command_id or None,
        "parent_execution_id": envelope.parent_execution_id or None,
        "idempotency_key": envelope.idempotency_key,
        "content_sha256": envelope.content_sha256,
        "prev_checksum": event.prev_checksum,
        "checksum": event.checksum,
        "body": event.body,
    }


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read(data: bytes, columns: list[str] | None) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(data), columns=columns)
    except (pa.ArrowException, OSError) as exc:
        raise Corrupt(f"a file of the lake cannot be read: {exc}") from exc
