"""The contracts that api serves over gRPC."""

import grpc

from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc import (
    catalog_service,
    credential_service,
    event_service,
    evidence_service,
    execution_service,
    payload_service,
    replay_service,
    shard_service,
    why_service,
    worker_service,
)

SERVICE_NAMES = (
    event_service.SERVICE_NAME,
    evidence_service.SERVICE_NAME,
    catalog_service.SERVICE_NAME,
    execution_service.SERVICE_NAME,
    credential_service.SERVICE_NAME,
    payload_service.SERVICE_NAME,
    replay_service.SERVICE_NAME,
    shard_service.SERVICE_NAME,
    why_service.SERVICE_NAME,
    worker_service.SERVICE_NAME,
)


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve all of them."""
    event_service.register(server, use_cases)
    evidence_service.register(server, use_cases)
    catalog_service.register(server, use_cases)
    execution_service.register(server, use_cases)
    credential_service.register(server, use_cases)
    payload_service.register(server, use_cases)
    replay_service.register(server, use_cases)
    shard_service.register(server, use_cases)
    why_service.register(server, use_cases)
    worker_service.register(server, use_cases)
