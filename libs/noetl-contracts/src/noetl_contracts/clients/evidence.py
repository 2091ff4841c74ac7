"""What proofs and exports read, over gRPC."""

from __future__ import annotations

from datetime import datetime

import grpc
from noetl.evidence.v1 import evidence_pb2 as pb
from noetl.evidence.v1 import evidence_pb2_grpc as pb_grpc
from noetl_core.errors import NotFound
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead, StreamPage

from noetl_contracts.mapping import evidence as mapping
from noetl_contracts.mapping.events import scope_message
from noetl_contracts.mapping.times import moment, optional_timestamp
from noetl_contracts.status import raising_noetl_errors


class EvidenceClient:
    """Port `Streams`, served by api."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 10.0) -> None:
        self._stub: pb_grpc.EvidenceServiceAsyncStub = pb_grpc.EvidenceServiceStub(channel)
        self._timeout = timeout

    async def list_streams(
        self, scope: Scope | None, *, after: int = 0, moved_since: datetime | None = None, limit: int = 1000
    ) -> StreamPage:
        """Heads with ids above one, of those that moved at or after a time."""
        request = pb.ListStreamsRequest(
            scope=scope_message(scope),
            after_execution_id=str(after) if after else "",
            moved_since=optional_timestamp(moved_since),
            page_size=limit,
        )
        with raising_noetl_errors():
            response = await self._stub.ListStreams(request, timeout=self._timeout)
        return StreamPage(
            heads=tuple(mapping.head(one) for one in response.heads), now=moment(response.now), more=response.more
        )

    async def find_stream(self, scope: Scope | None, execution_id: int) -> StreamHead | None:
        """One head, None if there is none for this scope."""
        request = pb.GetStreamRequest(scope=scope_message(scope), execution_id=str(execution_id))
        try:
            with raising_noetl_errors():
                response = await self._stub.GetStream(request, timeout=self._timeout)
        except NotFound:
            return None
        return mapping.head(response.head)
