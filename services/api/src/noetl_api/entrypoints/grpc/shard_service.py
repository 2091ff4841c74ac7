"""Shard leases over gRPC, granted to services and shown to administrators, and what owners leave for the next ones."""

from __future__ import annotations

import grpc
from noetl.shard.v1 import shard_pb2 as pb
from noetl.shard.v1 import shard_pb2_grpc as pb_grpc
from noetl_contracts.mapping import routing_snapshots as routing_mapping
from noetl_contracts.mapping import shards as mapping
from noetl_contracts.mapping.events import fence_of
from noetl_core.ids import parse_id
from noetl_core.ports.leases import Replica
from noetl_servicekit.callers import Role, current_caller

from noetl_api.application.use_cases import UseCases

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ShardService"].full_name


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_ShardServiceServicer_to_server(ShardServicer(use_cases), server)


class ShardServicer(pb_grpc.ShardServiceServicer):
    """Translates; who gets which shard is decided over the lease rows."""

    def __init__(self, use_cases: UseCases) -> None:
        self._leases = use_cases.leases
        self._shards = use_cases.shards
        self._routing = use_cases.routing

    async def GetInstallation(  # noqa: N802 - named by the contract
        self,
        request: pb.GetInstallationRequest,
        context: grpc.aio.ServicerContext[pb.GetInstallationRequest, pb.GetInstallationResponse],
    ) -> pb.GetInstallationResponse:
        """What was fixed at installation."""
        current_caller().require(Role.SERVICE)
        installation = await self._leases.installation()
        return pb.GetInstallationResponse(
            shard_count=installation.shard_count, log_generation=installation.log_generation
        )

    async def Hold(  # noqa: N802 - named by the contract
        self, request: pb.HoldRequest, context: grpc.aio.ServicerContext[pb.HoldRequest, pb.HoldResponse]
    ) -> pb.HoldResponse:
        """Renew, give back and claim."""
        current_caller().require(Role.SERVICE)
        replica = Replica(
            role=request.role, instance=request.instance, incarnation=request.incarnation, address=request.address
        )
        holding = await self._leases.hold(replica, lease_seconds=request.lease_seconds)
        return pb.HoldResponse(
            leases=[mapping.lease_message(lease) for lease in holding.leases],
            live_instances=holding.live_instances,
            log_branch=holding.log_branch,
            next_expiry_seconds=holding.next_expiry_seconds,
        )

    async def Release(  # noqa: N802 - named by the contract
        self, request: pb.ReleaseRequest, context: grpc.aio.ServicerContext[pb.ReleaseRequest, pb.ReleaseResponse]
    ) -> pb.ReleaseResponse:
        """Give everything back."""
        current_caller().require(Role.SERVICE)
        replica = Replica(role=request.role, instance=request.instance, incarnation=request.incarnation, address="")
        return pb.ReleaseResponse(released=await self._leases.release(replica))

    async def ListShards(  # noqa: N802 - named by the contract
        self,
        request: pb.ListShardsRequest,
        context: grpc.aio.ServicerContext[pb.ListShardsRequest, pb.ListShardsResponse],
    ) -> pb.ListShardsResponse:
        """Every shard of a role, or of all."""
        leases = await self._shards.list(current_caller(), role=request.role)
        return pb.ListShardsResponse(leases=[mapping.lease_message(lease) for lease in leases])

    async def KeepRouting(  # noqa: N802 - named by the contract
        self,
        request: pb.KeepRoutingRequest,
        context: grpc.aio.ServicerContext[pb.KeepRoutingRequest, pb.KeepRoutingResponse],
    ) -> pb.KeepRoutingResponse:
        """Keep the routing state of an execution."""
        snapshot = routing_mapping.snapshot(request.snapshot)
        kept = await self._routing.keep(current_caller(), snapshot, fence=fence_of(request.fence))
        return pb.KeepRoutingResponse(kept=kept)

    async def GetRouting(  # noqa: N802 - named by the contract
        self,
        request: pb.GetRoutingRequest,
        context: grpc.aio.ServicerContext[pb.GetRoutingRequest, pb.GetRoutingResponse],
    ) -> pb.GetRoutingResponse:
        """What is kept of an execution."""
        execution_id = parse_id(request.execution_id, what="execution_id")
        found = await self._routing.find(current_caller(), execution_id)
        return pb.GetRoutingResponse(snapshot=routing_mapping.snapshot_message(found) if found else None)
