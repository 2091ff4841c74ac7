"""Snapshots between messages and the core."""

from __future__ import annotations

from noetl.projection.v1 import projection_pb2 as pb
from noetl_core.ids import parse_id
from noetl_core.replay.snapshots import Rules, Snapshot

from noetl_contracts.mapping.times import moment, timestamp


def rules_message(rules: Rules) -> pb.SnapshotRules:
    """Rules as they are sent."""
    return pb.SnapshotRules(
        code_version=rules.code_version,
        upcasters=rules.upcasters,
        row_format=rules.row_format,
        state_format=rules.state_format,
    )


def rules(message: pb.SnapshotRules) -> Rules:
    """Rules as they were sent."""
    return Rules(
        code_version=message.code_version,
        upcasters=message.upcasters,
        row_format=message.row_format,
        state_format=message.state_format,
    )


def snapshot_message(one: Snapshot) -> pb.Snapshot:
    """What is said of a snapshot, as it is sent."""
    return pb.Snapshot(
        execution_id=str(one.execution_id),
        tenant_id=one.tenant_id,
        organization_id=one.organization_id,
        position=one.position,
        event_id=str(one.event_id),
        event_checksum=one.event_checksum,
        reached_at=timestamp(one.reached_at),
        rules=rules_message(one.rules),
        payload_root=one.payload_root,
        encryption_context=one.encryption,
        surfaces=one.surfaces,
        row_counts=one.row_counts,
        parts=one.parts,
        body_sha256=one.body_sha256,
        checksum=one.checksum,
    )


def snapshot(message: pb.Snapshot) -> Snapshot:
    """What is said of a snapshot, as it was sent."""
    return Snapshot(
        execution_id=parse_id(message.execution_id, what="execution_id"),
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        position=message.position,
        event_id=parse_id(message.event_id, what="event_id"),
        event_checksum=message.event_checksum,
        reached_at=moment(message.reached_at),
        rules=rules(message.rules),
        payload_root=message.payload_root,
        encryption=dict(message.encryption_context),
        surfaces=dict(message.surfaces),
        row_counts=dict(message.row_counts),
        parts=message.parts,
        body_sha256=message.body_sha256,
        checksum=message.checksum,
    )
