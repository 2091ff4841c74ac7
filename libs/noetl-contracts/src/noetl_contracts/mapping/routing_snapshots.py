"""Routing snapshots between messages and the core."""

from __future__ import annotations

from noetl.shard.v1 import shard_pb2 as pb
from noetl_core.ids import parse_id
from noetl_core.routing_snapshots import RoutingSnapshot


def snapshot_message(one: RoutingSnapshot) -> pb.RoutingSnapshot:
    """A snapshot as it is sent."""
    return pb.RoutingSnapshot(
        execution_id=str(one.execution_id),
        stream_version=one.stream_version,
        event_checksum=one.event_checksum,
        rules=one.rules,
        state_format=one.state_format,
        body=one.body,
        body_sha256=one.body_sha256,
    )


def snapshot(message: pb.RoutingSnapshot) -> RoutingSnapshot:
    """A snapshot as it was sent."""
    return RoutingSnapshot(
        execution_id=parse_id(message.execution_id, what="execution_id"),
        stream_version=message.stream_version,
        event_checksum=message.event_checksum,
        rules=message.rules,
        state_format=message.state_format,
        body=message.body,
        body_sha256=message.body_sha256,
    )
