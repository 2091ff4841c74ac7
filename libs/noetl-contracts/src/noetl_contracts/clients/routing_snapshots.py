"""Routing snapshots over gRPC."""

from __future__ import annotations

import grpc
from noetl.shard.v1 import shard_pb2 as pb
from noetl.shard.v1 import shard_pb2_grpc as pb_grpc
from noetl_core.append import Fence
from noetl_core.routing_snapshots import RoutingSnapshot

from noetl_contracts.mapping import routing_snapshots as mapping
from noetl_contracts.mapping.events import fence_message
from noetl_contracts.status import raising_noetl_errors


class RoutingSnapshotClient:
    """Port `RoutingSnapshots`, served by api."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 10.0) -> None:
        self._stub: pb_grpc.ShardServiceAsyncStub = pb_grpc.ShardServiceStub(channel)
        self._timeout = timeout

    async def find(self, execution_id: int) -> RoutingSnapshot | None:
        """The one that is kept, unproven."""
        with raising_noetl_errors():
            response = await self._stub.GetRouting(
                pb.GetRoutingRequest(execution_id=str(execution_id)), timeout=self._timeout
            )
        return mapping.snapshot(response.snapshot) if response.HasField("snapshot") else None

    async def keep(self, snapshot: RoutingSnapshot, *, fence: Fence) -> bool:
        """Put it in the place of an older one."""
        request = pb.KeepRoutingRequest(snapshot=mapping.snapshot_message(snapshot), fence=fence_message(fence))
        with raising_noetl_errors():
            return (await self._stub.KeepRouting(request, timeout=self._timeout)).kept
