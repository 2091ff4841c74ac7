"""Shard leases as messages."""

from __future__ import annotations

from noetl.shard.v1 import shard_pb2 as pb
from noetl_core.ports.leases import Holding, ShardLease

from noetl_contracts.mapping.times import moment, timestamp


def lease_message(lease: ShardLease) -> pb.Lease:
    """A lease as a message."""
    return pb.Lease(
        role=lease.role,
        shard=lease.shard,
        epoch=lease.epoch,
        instance=lease.instance,
        address=lease.address,
        leased_until=timestamp(lease.leased_until),
    )


def lease(message: pb.Lease) -> ShardLease:
    """A lease."""
    return ShardLease(
        role=message.role,
        shard=message.shard,
        epoch=message.epoch,
        instance=message.instance,
        address=message.address,
        leased_until=moment(message.leased_until),
    )


def holding(message: pb.HoldResponse) -> Holding:
    """Everything that a replica holds."""
    return Holding(
        leases=tuple(lease(one) for one in message.leases),
        live_instances=message.live_instances,
        log_branch=message.log_branch,
        next_expiry_seconds=message.next_expiry_seconds,
    )
