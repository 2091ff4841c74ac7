"""Credentials over gRPC."""

from __future__ import annotations

import grpc
from noetl.credential.v1 import credential_pb2 as pb
from noetl.credential.v1 import credential_pb2_grpc as pb_grpc
from noetl_contracts.mapping import credentials as mapping
from noetl_core.canonical import encode
from noetl_core.credentials import checked_credential, decode_data
from noetl_core.ids import parse_id
from noetl_servicekit.callers import current_caller

from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc.scopes import scope_of

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["CredentialService"].full_name


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_CredentialServiceServicer_to_server(CredentialServicer(use_cases), server)


class CredentialServicer(pb_grpc.CredentialServiceServicer):
    """Translates; the use cases decide."""

    def __init__(self, use_cases: UseCases) -> None:
        self._credentials = use_cases.credentials
        self._rotate_credentials = use_cases.rotate_credentials

    async def Put(  # noqa: N802 - named by the contract
        self, request: pb.PutRequest, context: grpc.aio.ServicerContext[pb.PutRequest, pb.PutResponse]
    ) -> pb.PutResponse:
        """Store, in place of what was there."""
        credential = checked_credential(
            name=request.name,
            type_name=request.type,
            description=request.description,
            tags=request.tags,
            data=decode_data(request.data_json),
        )
        stored = await self._credentials.put(current_caller(), scope_of(request.scope), credential)
        return pb.PutResponse(credential=mapping.info_message(stored.info), created=stored.created)

    async def Get(  # noqa: N802 - named by the contract
        self, request: pb.GetRequest, context: grpc.aio.ServicerContext[pb.GetRequest, pb.GetResponse]
    ) -> pb.GetResponse:
        """One credential, with its data only if they were asked for."""
        caller, scope = current_caller(), scope_of(request.scope)
        if not request.include_data:
            info = await self._credentials.get(caller, scope, request.name)
            return pb.GetResponse(credential=mapping.info_message(info))
        info, credential = await self._credentials.reveal(caller, scope, request.name)
        return pb.GetResponse(credential=mapping.info_message(info), data_json=encode(credential.data))

    async def List(  # noqa: N802 - named by the contract
        self, request: pb.ListRequest, context: grpc.aio.ServicerContext[pb.ListRequest, pb.ListResponse]
    ) -> pb.ListResponse:
        """Credentials by name."""
        page = await self._credentials.list(
            current_caller(),
            scope_of(request.scope),
            type_name=request.type,
            contains=request.contains,
            size=request.page_size,
            token=request.page_token,
        )
        return pb.ListResponse(
            credentials=[mapping.info_message(info) for info in page.credentials], next_page_token=page.next_page_token
        )

    async def Delete(  # noqa: N802 - named by the contract
        self, request: pb.DeleteRequest, context: grpc.aio.ServicerContext[pb.DeleteRequest, pb.DeleteResponse]
    ) -> pb.DeleteResponse:
        """Remove one."""
        info = await self._credentials.delete(current_caller(), scope_of(request.scope), request.name)
        return pb.DeleteResponse(credential=mapping.info_message(info))

    async def Resolve(  # noqa: N802 - named by the contract
        self, request: pb.ResolveRequest, context: grpc.aio.ServicerContext[pb.ResolveRequest, pb.ResolveResponse]
    ) -> pb.ResolveResponse:
        """One with its data, for a call of a tool."""
        if request.execution_id:
            parse_id(request.execution_id, what="execution_id")  # what goes into the audit log is what it says
        info, credential = await self._credentials.resolve(
            current_caller(), scope_of(request.scope), request.name, execution_id=request.execution_id
        )
        return pb.ResolveResponse(credential=mapping.info_message(info), data_json=encode(credential.data))

    async def Rotate(  # noqa: N802 - named by the contract
        self, request: pb.RotateRequest, context: grpc.aio.ServicerContext[pb.RotateRequest, pb.RotateResponse]
    ) -> pb.RotateResponse:
        """A page of a rotation."""
        rotated = await self._rotate_credentials(
            current_caller(), scope_of(request.scope), size=request.page_size, token=request.page_token
        )
        return mapping.rotated_message(rotated)
