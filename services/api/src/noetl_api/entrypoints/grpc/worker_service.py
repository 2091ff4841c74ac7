"""The list of workers over gRPC."""

from __future__ import annotations

import grpc
from noetl.worker.v1 import worker_pb2 as pb
from noetl.worker.v1 import worker_pb2_grpc as pb_grpc
from noetl_contracts.mapping import workers as mapping
from noetl_servicekit.callers import current_caller

from noetl_api.application.use_cases import UseCases

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["WorkerService"].full_name


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_WorkerServiceServicer_to_server(WorkerServicer(use_cases), server)


class WorkerServicer(pb_grpc.WorkerServiceServicer):
    """Translates; the use case decides."""

    def __init__(self, use_cases: UseCases) -> None:
        self._workers = use_cases.workers

    async def Report(  # noqa: N802 - named by the contract
        self, request: pb.ReportRequest, context: grpc.aio.ServicerContext[pb.ReportRequest, pb.ReportResponse]
    ) -> pb.ReportResponse:
        """A worker is there."""
        report = mapping.report(request.report)
        await self._workers.report(current_caller(), report, lease_seconds=request.lease_seconds)
        return pb.ReportResponse()

    async def Leave(  # noqa: N802 - named by the contract
        self, request: pb.LeaveRequest, context: grpc.aio.ServicerContext[pb.LeaveRequest, pb.LeaveResponse]
    ) -> pb.LeaveResponse:
        """A worker is there no longer."""
        await self._workers.leave(current_caller(), request.worker_id)
        return pb.LeaveResponse()

    async def List(  # noqa: N802 - named by the contract
        self, request: pb.ListRequest, context: grpc.aio.ServicerContext[pb.ListRequest, pb.ListResponse]
    ) -> pb.ListResponse:
        """Those who are there."""
        workers = await self._workers.list(current_caller(), pool=request.pool)
        return pb.ListResponse(workers=[mapping.worker_message(worker) for worker in workers])
