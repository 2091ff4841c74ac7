"""Projections over gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from noetl.projection.v1 import projection_pb2 as pb
from noetl.projection.v1 import projection_pb2_grpc as pb_grpc
from noetl_core.ports.deadlines import LatePage
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import LivePage, RowPage, RowPlace
from noetl_core.ports.projections import ExecutionPage, ExecutionView, SilentPage
from noetl_core.ports.quiet import QuietPage

from noetl_contracts.mapping import evidence
from noetl_contracts.mapping import executions as mapping
from noetl_contracts.mapping.events import scope_message
from noetl_contracts.status import raising_noetl_errors

ROWS_TIMEOUT_SECONDS: Final = 20.0
"""Beyond what is waited for."""


class ProjectionClient:
    """Ports `Projections`, `LiveExecutions` and `LiveRows`, served by projectors."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 5.0) -> None:
        self._stub: pb_grpc.ProjectionServiceAsyncStub = pb_grpc.ProjectionServiceStub(channel)
        self._timeout = timeout

    async def get_execution(
        self, scope: Scope | None, execution_id: int, *, min_version: int = 0, wait_seconds: float = 0.0
    ) -> ExecutionView:
        """One execution; `wait_seconds` bounds the wait for `min_version`."""
        request = pb.GetExecutionRequest(
            scope=scope_message(scope), execution_id=str(execution_id), min_version=min_version
        )
        with raising_noetl_errors():
            response = await self._stub.GetExecution(request, timeout=wait_seconds or self._timeout)
        return mapping.execution(response.execution)

    async def list_executions(
        self,
        scope: Scope,
        *,
        status: str = "",
        path: str = "",
        parent_execution_id: int | None = None,
        page_size: int = 50,
        page_token: str = "",
    ) -> ExecutionPage:
        """Executions, newest first."""
        request = pb.ListExecutionsRequest(
            scope=scope_message(scope),
            status=status,
            path=path,
            parent_execution_id=str(parent_execution_id or ""),
            page_size=page_size,
            page_token=page_token,
        )
        with raising_noetl_errors():
            return mapping.execution_page(await self._stub.ListExecutions(request, timeout=self._timeout))

    async def silent_commands(self, *, limit: int = 100, page_token: str = "") -> SilentPage:
        """Claimed commands whose lease is over, longest silent first."""
        request = pb.ListSilentCommandsRequest(page_size=limit, page_token=page_token)
        with raising_noetl_errors():
            response = await self._stub.ListSilentCommands(request, timeout=self._timeout)
        return SilentPage(
            commands=tuple(mapping.silent_command(one) for one in response.commands),
            next_page_token=response.next_page_token,
        )

    async def passed_deadlines(self, *, limit: int = 100, page_token: str = "") -> LatePage:
        """Executions whose next deadline has passed, longest overdue first; port `LateExecutions`."""
        request = pb.ListPassedDeadlinesRequest(page_size=limit, page_token=page_token)
        with raising_noetl_errors():
            response = await self._stub.ListPassedDeadlines(request, timeout=self._timeout)
        return LatePage(
            executions=tuple(mapping.late_execution(one) for one in response.executions),
            next_page_token=response.next_page_token,
        )

    async def quiet_executions(self, *, quiet_seconds: float, limit: int = 100, page_token: str = "") -> QuietPage:
        """Executions in which nothing has happened for a while, oldest first; port `QuietExecutions`."""
        request = pb.ListQuietExecutionsRequest(quiet_seconds=quiet_seconds, page_size=limit, page_token=page_token)
        with raising_noetl_errors():
            response = await self._stub.ListQuietExecutions(request, timeout=self._timeout)
        return QuietPage(
            executions=tuple(mapping.quiet_execution(one) for one in response.executions),
            next_page_token=response.next_page_token,
        )

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
            wanted=evidence.wanted_messages(wanted),
            wait_seconds=wait_seconds,
            page_token=after.to_token() if after is not None else "",
        )
        with raising_noetl_errors():
            response = await self._stub.ListRows(request, timeout=wait_seconds + ROWS_TIMEOUT_SECONDS)
        return evidence.row_page(response.page)

    async def list_live(self, scope: Scope | None, *, after: int = 0, limit: int = 1000) -> LivePage:
        """Executions that have a row, by their ids; port `LiveExecutions`."""
        request = pb.ListLiveRequest(
            scope=scope_message(scope), after_execution_id=str(after) if after else "", page_size=limit
        )
        with raising_noetl_errors():
            response = await self._stub.ListLive(request, timeout=ROWS_TIMEOUT_SECONDS)
        return evidence.live_page(response.page)
