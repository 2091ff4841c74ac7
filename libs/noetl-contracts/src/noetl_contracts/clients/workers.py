"""The list of workers over gRPC."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from noetl.worker.v1 import worker_pb2 as pb
from noetl.worker.v1 import worker_pb2_grpc as pb_grpc
from noetl_core.ports.workers import PresentWorker, WorkerReport

from noetl_contracts.mapping import workers as mapping
from noetl_contracts.status import raising_noetl_errors


class WorkerClient:
    """Port `WorkerPresence`, served by api."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 5.0) -> None:
        self._stub: pb_grpc.WorkerServiceAsyncStub = pb_grpc.WorkerServiceStub(channel)
        self._timeout = timeout

    async def report(self, report: WorkerReport, *, lease_seconds: float) -> None:
        """Tell that a worker is there."""
        request = pb.ReportRequest(report=mapping.report_message(report), lease_seconds=lease_seconds)
        with raising_noetl_errors():
            await self._stub.Report(request, timeout=self._timeout)

    async def leave(self, worker_id: str) -> None:
        """Tell that it is there no longer."""
        with raising_noetl_errors():
            await self._stub.Leave(pb.LeaveRequest(worker_id=worker_id), timeout=self._timeout)

    async def list(self, *, pool: str = "") -> Sequence[PresentWorker]:
        """Those who are there, by name."""
        with raising_noetl_errors():
            response = await self._stub.List(pb.ListRequest(pool=pool), timeout=self._timeout)
        return [mapping.worker(one) for one in response.workers]
