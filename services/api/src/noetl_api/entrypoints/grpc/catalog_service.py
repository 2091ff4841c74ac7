"""The catalog over gRPC."""

from __future__ import annotations

import grpc
from noetl.catalog.v1 import catalog_pb2 as pb
from noetl.catalog.v1 import catalog_pb2_grpc as pb_grpc
from noetl_contracts.mapping import catalog as mapping
from noetl_servicekit.callers import current_caller

from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc.scopes import scope_of

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["CatalogService"].full_name


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_CatalogServiceServicer_to_server(CatalogServicer(use_cases), server)


class CatalogServicer(pb_grpc.CatalogServiceServicer):
    """Translates; the use cases decide."""

    def __init__(self, use_cases: UseCases) -> None:
        self._register_playbook = use_cases.register_playbook
        self._find_playbooks = use_cases.find_playbooks

    async def Register(  # noqa: N802 - named by the contract
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.RegisterResponse]
    ) -> pb.RegisterResponse:
        """Validate and store."""
        registered = await self._register_playbook(current_caller(), scope_of(request.scope), request.content)
        return mapping.registered_message(registered)

    async def Get(  # noqa: N802 - named by the contract
        self, request: pb.GetRequest, context: grpc.aio.ServicerContext[pb.GetRequest, pb.GetResponse]
    ) -> pb.GetResponse:
        """One version."""
        source = await self._find_playbooks.get(
            current_caller(),
            scope_of(request.scope),
            path=request.path,
            version=request.version,
            catalog_id=request.catalog_id,
        )
        return pb.GetResponse(entry=mapping.entry_message(source.entry), content=source.content)

    async def List(  # noqa: N802 - named by the contract
        self, request: pb.ListRequest, context: grpc.aio.ServicerContext[pb.ListRequest, pb.ListResponse]
    ) -> pb.ListResponse:
        """Newest version of each playbook."""
        page = await self._find_playbooks.list(
            current_caller(), scope_of(request.scope), size=request.page_size, token=request.page_token
        )
        return pb.ListResponse(
            entries=[mapping.entry_message(entry) for entry in page.entries], next_page_token=page.next_page_token
        )

    async def ListVersions(  # noqa: N802 - named by the contract
        self,
        request: pb.ListVersionsRequest,
        context: grpc.aio.ServicerContext[pb.ListVersionsRequest, pb.ListVersionsResponse],
    ) -> pb.ListVersionsResponse:
        """Versions of one playbook."""
        page = await self._find_playbooks.versions(
            current_caller(), scope_of(request.scope), request.path, size=request.page_size, token=request.page_token
        )
        return pb.ListVersionsResponse(
            entries=[mapping.entry_message(entry) for entry in page.entries], next_page_token=page.next_page_token
        )
