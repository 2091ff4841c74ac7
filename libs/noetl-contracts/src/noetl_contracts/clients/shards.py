"""Shard leases over gRPC."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from noetl.shard.v1 import shard_pb2 as pb
from noetl.shard.v1 import shard_pb2_grpc as pb_grpc
from noetl_core.ports.leases import Holding, Installation, Replica, ShardLease

from noetl_contracts.mapping import shards as mapping
from noetl_contracts.status import raising_noetl_errors


class ShardClient:
    """Port `ShardLeases`, served by api."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 5.0) -> None:
        self._stub: pb_grpc.ShardServiceAsyncStub = pb_grpc.ShardServiceStub(channel)
        self._timeout = timeout

    async def installation(self) -> Installation:
        """The facts of this installation."""
        with raising_noetl_errors():
            response = await self._stub.GetInstallation(pb.GetInstallationRequest(), timeout=self._timeout)
        return Installation(shard_count=response.shard_count, log_generation=response.log_generation)

    async def hold(self, replica: Replica, *, lease_seconds: float) -> Holding:
        """Renew and extend what the replica holds."""
        request = pb.HoldRequest(
            role=replica.role,
            instance=replica.instance,
            incarnation=replica.incarnation,
            address=replica.address,
            lease_seconds=lease_seconds,
        )
        with raising_noetl_errors():
            return mapping.holding(await self._stub.Hold(request, timeout=self._timeout))

    async def release(self, replica: Replica) -> int:
        """Give everything back at once."""
        request = pb.ReleaseRequest(role=replica.role, instance=replica.instance, incarnation=replica.incarnation)
        with raising_noetl_errors():
            return (await self._stub.Release(request, timeout=self._timeout)).released

    async def list_shards(self, role: str) -> Sequence[ShardLease]:
        """Every shard of a role with its owner."""
        with raising_noetl_errors():
            response = await self._stub.ListShards(pb.ListShardsRequest(role=role), timeout=self._timeout)
        return [mapping.lease(one) for one in response.leases]
