"""Credentials over gRPC: for those who look after them, and for the calls that need one."""

from __future__ import annotations

import grpc
from noetl.credential.v1 import credential_pb2 as pb
from noetl.credential.v1 import credential_pb2_grpc as pb_grpc
from noetl_core.credentials import CREDENTIAL_NOT_FOUND, NOT_FOUND, encode_data
from noetl_core.errors import NotFound
from noetl_core.ports.credentials import Credential, CredentialInfo, CredentialPage, RotatedPage, StoredCredential
from noetl_core.ports.event_log import Scope

from noetl_contracts.mapping import credentials as mapping
from noetl_contracts.mapping.events import scope_message
from noetl_contracts.status import raising_noetl_errors


class CredentialClient:
    """Stores, shows and removes credentials; served by api. Without a scope the caller's token decides."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 10.0) -> None:
        self._stub: pb_grpc.CredentialServiceAsyncStub = pb_grpc.CredentialServiceStub(channel)
        self._timeout = timeout

    async def put(self, scope: Scope | None, credential: Credential) -> StoredCredential:
        """Store under its name, in place of what was there."""
        request = pb.PutRequest(
            scope=scope_message(scope),
            name=credential.name,
            type=credential.type,
            description=credential.description,
            tags=credential.tags,
            data_json=encode_data(credential),
        )
        with raising_noetl_errors():
            return mapping.stored(await self._stub.Put(request, timeout=self._timeout))

    async def get(self, scope: Scope | None, name: str) -> CredentialInfo:
        """One credential, without its data."""
        request = pb.GetRequest(scope=scope_message(scope), name=name)
        with raising_noetl_errors():
            return mapping.info((await self._stub.Get(request, timeout=self._timeout)).credential)

    async def reveal(self, scope: Scope | None, name: str) -> tuple[CredentialInfo, Credential]:
        """One credential with its data, if the caller is an admin; it is noted who looked."""
        request = pb.GetRequest(scope=scope_message(scope), name=name, include_data=True)
        with raising_noetl_errors():
            response = await self._stub.Get(request, timeout=self._timeout)
        return mapping.info(response.credential), mapping.credential(response.credential, response.data_json)

    async def list(
        self,
        scope: Scope | None,
        *,
        type_name: str = "",
        contains: str = "",
        page_size: int = 100,
        page_token: str = "",
    ) -> CredentialPage:
        """Credentials by name."""
        request = pb.ListRequest(
            scope=scope_message(scope),
            type=type_name,
            contains=contains,
            page_size=page_size,
            page_token=page_token,
        )
        with raising_noetl_errors():
            return mapping.page(await self._stub.List(request, timeout=self._timeout))

    async def delete(self, scope: Scope | None, name: str) -> CredentialInfo:
        """Remove one."""
        request = pb.DeleteRequest(scope=scope_message(scope), name=name)
        with raising_noetl_errors():
            return mapping.info((await self._stub.Delete(request, timeout=self._timeout)).credential)

    async def rotate(self, scope: Scope | None, *, page_size: int = 0, page_token: str = "") -> RotatedPage:
        """Encrypt a page of credentials with the current key; go on until there is no next page."""
        request = pb.RotateRequest(scope=scope_message(scope), page_size=page_size, page_token=page_token)
        with raising_noetl_errors():
            return mapping.rotated(await self._stub.Rotate(request, timeout=self._timeout))


class ResolvedCredentials:
    """Credentials for calls of tools, with a service's token; fetched for each call, and nothing of them is kept."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 10.0) -> None:
        self._stub: pb_grpc.CredentialServiceAsyncStub = pb_grpc.CredentialServiceStub(channel)
        self._timeout = timeout

    async def get(
        self, *, tenant_id: str, organization_id: str, name: str, execution_id: int | None = None
    ) -> Credential:
        """The credential of this name; raises `NotFound` with the code CREDENTIAL_NOT_FOUND."""
        request = pb.ResolveRequest(
            scope=scope_message(Scope(tenant_id=tenant_id, organization_id=organization_id)),
            name=name,
            execution_id="" if execution_id is None else str(execution_id),
        )
        try:
            with raising_noetl_errors():
                response = await self._stub.Resolve(request, timeout=self._timeout)
        except NotFound as exc:
            if exc.code != NOT_FOUND:
                raise
            raise NotFound("credential", name, code=CREDENTIAL_NOT_FOUND) from exc
        return mapping.credential(response.credential, response.data_json)
