"""Heads of streams as messages and back."""

from __future__ import annotations

from noetl.evidence.v1 import evidence_pb2 as pb
from noetl_core.ids import parse_id
from noetl_core.ports.streams import StreamHead

from noetl_contracts.mapping.times import moment, timestamp


def head_message(head: StreamHead) -> pb.StreamHead:
    """Where a stream ends, as a message."""
    return pb.StreamHead(
        execution_id=str(head.execution_id),
        tenant_id=head.tenant_id,
        organization_id=head.organization_id,
        version=head.version,
        checksum=head.checksum,
        terminal=head.terminal,
        updated_at=timestamp(head.updated_at),
    )


def head(message: pb.StreamHead) -> StreamHead:
    """Where a stream ends."""
    return StreamHead(
        execution_id=parse_id(message.execution_id, what="execution_id"),
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        version=message.version,
        checksum=message.checksum,
        terminal=message.terminal,
        updated_at=moment(message.updated_at),
    )
