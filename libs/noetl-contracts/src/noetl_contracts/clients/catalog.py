"""The catalog over gRPC."""

from __future__ import annotations

import grpc
from noetl.catalog.v1 import catalog_pb2 as pb
from noetl.catalog.v1 import catalog_pb2_grpc as pb_grpc
from noetl_core.ports.catalog import CatalogPage, PlaybookSource, Registered
from noetl_core.ports.event_log import Scope

from noetl_contracts.mapping import catalog as mapping
from noetl_contracts.mapping.events import scope_message
from noetl_contracts.status import raising_noetl_errors


class CatalogClient:
    """Port `Catalog`, served by api; without a scope the caller's token decides."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 10.0) -> None:
        self._stub: pb_grpc.CatalogServiceAsyncStub = pb_grpc.CatalogServiceStub(channel)
        self._timeout = timeout

    async def register(self, scope: Scope | None, content: str) -> Registered:
        """Validate and store a playbook."""
        request = pb.RegisterRequest(scope=scope_message(scope), content=content)
        with raising_noetl_errors():
            return mapping.registered(await self._stub.Register(request, timeout=self._timeout))

    async def get(
        self, scope: Scope | None, *, path: str = "", version: int = 0, catalog_id: str = ""
    ) -> PlaybookSource:
        """One version of a playbook."""
        request = pb.GetRequest(scope=scope_message(scope), path=path, version=version, catalog_id=catalog_id)
        with raising_noetl_errors():
            return mapping.source(await self._stub.Get(request, timeout=self._timeout))

    async def list(self, scope: Scope | None, *, page_size: int = 100, page_token: str = "") -> CatalogPage:
        """Newest version of each playbook."""
        request = pb.ListRequest(scope=scope_message(scope), page_size=page_size, page_token=page_token)
        with raising_noetl_errors():
            return mapping.page(await self._stub.List(request, timeout=self._timeout))

    async def versions(
        self, scope: Scope | None, path: str, *, page_size: int = 100, page_token: str = ""
    ) -> CatalogPage:
        """Versions of one playbook, newest first."""
        request = pb.ListVersionsRequest(
            scope=scope_message(scope), path=path, page_size=page_size, page_token=page_token
        )
        with raising_noetl_errors():
            return mapping.page(await self._stub.ListVersions(request, timeout=self._timeout))
