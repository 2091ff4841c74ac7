"""The standard health protocol over gRPC, answered from the process' own health."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from noetl_core.errors import NotFound

from noetl_servicekit.health import Health

SECONDS_BETWEEN_LOOKS: Final = 0.5
SERVICE_NAME: Final = "grpc.health.v1.Health"


class HealthServicer:
    """Every service of the server is ready exactly when the process is."""

    def __init__(self, health: Health, service_names: Sequence[str]) -> None:
        self._health = health
        self._service_names = ("", *service_names)

    async def Check(self, request: Any, context: object) -> Any:  # noqa: N802 - named by the protocol
        if request.service not in self._service_names:
            raise NotFound("service", request.service)
        return health_pb2.HealthCheckResponse(status=self._status())

    async def List(self, request: Any, context: object) -> Any:  # noqa: N802 - named by the protocol
        status = self._status()
        return health_pb2.HealthListResponse(
            statuses={name: health_pb2.HealthCheckResponse(status=status) for name in self._service_names}
        )

    async def Watch(self, request: Any, context: object) -> AsyncIterator[Any]:  # noqa: N802 - named by the protocol
        sent = None
        while True:
            is_last = self._health.draining  # then the watch must end, or it would keep the server from stopping
            status = (
                self._status()
                if request.service in self._service_names
                else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            )
            if status != sent:
                yield health_pb2.HealthCheckResponse(status=status)
                sent = status
            if is_last:
                return
            # Silence is something that does not happen, so nothing can wake us when it does.
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)

    def _status(self) -> Any:
        ready = self._health.report().ready
        return health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING


def add_health_service(server: grpc.aio.Server, health: Health, service_names: Sequence[str]) -> None:
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(health, service_names), server)
