"""What proofs and exports read, over gRPC."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

import grpc
from noetl.evidence.v1 import evidence_pb2 as pb
from noetl.evidence.v1 import evidence_pb2_grpc as pb_grpc
from noetl_core.errors import NotFound
from noetl_core.ports.event_columns import ColumnPage, Place
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import LivePage, RowPage, RowPlace
from noetl_core.ports.streams import HiddenPage, StreamHead, StreamPage

from noetl_contracts.mapping import evidence as mapping
from noetl_contracts.mapping.events import scope_message, told_scope
from noetl_contracts.mapping.times import moment, optional_timestamp
from noetl_contracts.status import raising_noetl_errors

ROWS_TIMEOUT_SECONDS: Final = 30.0
"""Beyond what is waited for."""


class EvidenceClient:
    """Ports `Streams`, `HiddenStreams`, `LiveExecutions`, `LiveRows` and `EventColumns`, served by api."""

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
            heads=tuple(mapping.head(one) for one in response.heads),
            now=moment(response.now),
            more=response.more,
            log_branch=response.log_branch,
            scope=told_scope(response.scope) if response.HasField("scope") else None,
        )

    async def list_hidden(self, scope: Scope | None, *, after: int = 0, limit: int = 1000) -> HiddenPage:
        """Executions that have events and no head of theirs; port `HiddenStreams`."""
        request = pb.ListHiddenRequest(
            scope=scope_message(scope), after_execution_id=str(after) if after else "", page_size=limit
        )
        with raising_noetl_errors():
            return mapping.hidden_page(await self._stub.ListHidden(request, timeout=ROWS_TIMEOUT_SECONDS))

    async def list_live(self, scope: Scope | None, *, after: int = 0, limit: int = 1000) -> LivePage:
        """Executions that have a row, by their ids; port `LiveExecutions`."""
        request = pb.ListLiveRequest(
            scope=scope_message(scope), after_execution_id=str(after) if after else "", page_size=limit
        )
        with raising_noetl_errors():
            response = await self._stub.ListLive(request, timeout=ROWS_TIMEOUT_SECONDS)
        return mapping.live_page(response.page)

    async def find_stream(self, scope: Scope | None, execution_id: int) -> StreamHead | None:
        """One head, None if there is none for this scope."""
        request = pb.GetStreamRequest(scope=scope_message(scope), execution_id=str(execution_id))
        try:
            with raising_noetl_errors():
                response = await self._stub.GetStream(request, timeout=self._timeout)
        except NotFound:
            return None
        return mapping.head(response.head)

    async def list_rows(
        self,
        scope: Scope | None,
        wanted: Mapping[int, int],
        *,
        after: RowPlace | None = None,
        wait_seconds: float = 0.0,
    ) -> RowPage:
        """One page of rows as they are stored; port `LiveRows`."""
        request = pb.ListRowsRequest(
            scope=scope_message(scope),
            wanted=mapping.wanted_messages(wanted),
            wait_seconds=wait_seconds,
            page_token=after.to_token() if after is not None else "",
        )
        with raising_noetl_errors():
            response = await self._stub.ListRows(request, timeout=wait_seconds + ROWS_TIMEOUT_SECONDS)
        return mapping.row_page(response.page)

    async def check_columns(
        self, scope: Scope | None, execution_ids: Collection[int], *, after: Place | None = None
    ) -> ColumnPage:
        """One page of what differs between columns and bytes; port `EventColumns`."""
        request = pb.CheckColumnsRequest(
            scope=scope_message(scope),
            execution_ids=[str(one) for one in execution_ids],
            page_token="/".join(map(str, after)) if after is not None else "",
        )
        with raising_noetl_errors():
            return mapping.column_page(await self._stub.CheckColumns(request, timeout=ROWS_TIMEOUT_SECONDS))
