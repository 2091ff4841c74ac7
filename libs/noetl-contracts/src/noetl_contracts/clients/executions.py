"""Executions over gRPC."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
from noetl.execution.v1 import execution_pb2 as pb
from noetl.execution.v1 import execution_pb2_grpc as pb_grpc
from noetl_core.append import Fence
from noetl_core.canonical import encode
from noetl_core.children.state import StartingCall
from noetl_core.ids import parse_id
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionPage, ExecutionView
from noetl_core.ports.steering import Steered

from noetl_contracts.channel import NO_DEADLINE
from noetl_contracts.mapping import executions as mapping
from noetl_contracts.mapping.call_logs import LogBatch, log_batch
from noetl_contracts.mapping.events import fence_message, scope_message
from noetl_contracts.status import raising_noetl_errors

FAILED_ROWS_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedExecution:
    """An execution that exists now; `created` is false when its start key had been used before."""

    execution_id: int
    path: str
    version: int
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledExecution:
    """An execution that was cancelled, and how many descendants the request has cancelled with it."""

    stream_version: int
    cancelled_descendants: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivenExecution:
    """An execution that takes up another one, and the step that it begins with."""

    execution_id: int
    path: str
    version: int
    step: str
    created: bool
    row_count: int = 0
    """How many failed rows it runs again; 0 if it runs the whole step."""


class ExecutionClient:
    """Starts, shows, steers and ends executions; served by api."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 10.0) -> None:
        self._stub: pb_grpc.ExecutionServiceAsyncStub = pb_grpc.ExecutionServiceStub(channel)
        self._timeout = timeout

    async def execute(
        self,
        scope: Scope | None,
        *,
        path: str = "",
        version: int = 0,
        catalog_id: str = "",
        payload: Mapping[str, Any] | None = None,
        start_key: str = "",
        parent_execution_id: int | None = None,
        parent_call: StartingCall | None = None,
    ) -> StartedExecution:
        """Start a playbook. A start key is made up if none is given, so that a lost answer cannot start two."""
        request = pb.ExecuteRequest(
            scope=scope_message(scope),
            path=path,
            version=version,
            catalog_id=catalog_id,
            payload_json=encode(dict(payload)) if payload else b"",
            start_key=start_key or ("" if parent_call else f"client/{uuid.uuid4().hex}"),
            parent_execution_id=str(parent_execution_id or ""),
            parent_call=mapping.parent_call_message(parent_call) if parent_call else None,
        )
        with raising_noetl_errors():
            response = await self._stub.Execute(request, timeout=self._timeout)
        return StartedExecution(
            execution_id=parse_id(response.execution_id),
            path=response.path,
            version=response.version,
            created=response.created,
        )

    async def get(self, scope: Scope | None, execution_id: int, *, min_version: int = 0) -> ExecutionView:
        """One execution."""
        request = pb.GetRequest(scope=scope_message(scope), execution_id=str(execution_id), min_version=min_version)
        with raising_noetl_errors():
            return mapping.execution((await self._stub.Get(request, timeout=self._timeout)).execution)

    async def list(
        self,
        scope: Scope | None,
        *,
        status: str = "",
        path: str = "",
        parent_execution_id: int | None = None,
        page_size: int = 50,
        page_token: str = "",
    ) -> ExecutionPage:
        """Executions, newest first."""
        request = pb.ListRequest(
            scope=scope_message(scope),
            status=status,
            path=path,
            parent_execution_id=str(parent_execution_id or ""),
            page_size=page_size,
            page_token=page_token,
        )
        with raising_noetl_errors():
            return mapping.execution_page(await self._stub.List(request, timeout=self._timeout))

    async def cancel(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        reason: str = "",
        cascade: bool = True,
        fence: Fence | None = None,
    ) -> CancelledExecution:
        """End an execution now, with its descendants unless told otherwise."""
        request = pb.CancelRequest(
            scope=scope_message(scope),
            execution_id=str(execution_id),
            reason=reason,
            no_cascade=not cascade,
            fence=fence_message(fence),
        )
        with raising_noetl_errors():
            response = await self._stub.Cancel(request, timeout=self._timeout)
        return CancelledExecution(
            stream_version=response.stream_version, cancelled_descendants=response.cancelled_descendants
        )

    async def pause(
        self, scope: Scope | None, execution_id: int, *, reason: str = "", cascade: bool = False
    ) -> Steered:
        """Issue and grant no commands until it is resumed."""
        request = pb.PauseRequest(
            scope=scope_message(scope), execution_id=str(execution_id), reason=reason, cascade=cascade
        )
        with raising_noetl_errors():
            response = await self._stub.Pause(request, timeout=self._timeout)
        return Steered(stream_version=response.stream_version, status=response.status, descendants=response.descendants)

    async def resume(
        self, scope: Scope | None, execution_id: int, *, reason: str = "", cascade: bool = False
    ) -> Steered:
        """Go on with what was held back."""
        request = pb.ResumeRequest(
            scope=scope_message(scope), execution_id=str(execution_id), reason=reason, cascade=cascade
        )
        with raising_noetl_errors():
            response = await self._stub.Resume(request, timeout=self._timeout)
        return Steered(stream_version=response.stream_version, status=response.status, descendants=response.descendants)

    async def finalize(self, scope: Scope | None, execution_id: int, *, status: str = "", reason: str = "") -> Steered:
        """Force an end."""
        request = pb.FinalizeRequest(
            scope=scope_message(scope), execution_id=str(execution_id), status=status, reason=reason
        )
        with raising_noetl_errors():
            response = await self._stub.Finalize(request, timeout=self._timeout)
        return Steered(stream_version=response.stream_version, status=response.status)

    async def redrive(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        step: str = "",
        reason: str = "",
        start_key: str = "",
        failed_rows: bool = False,
    ) -> RedrivenExecution:
        """Start a new execution at a step of an ended one; a start key is made up if none is given.

        With `failed_rows` it runs the rows of the step that failed, and nothing else.
        """
        request = pb.RedriveRequest(
            scope=scope_message(scope),
            execution_id=str(execution_id),
            step=step,
            reason=reason,
            start_key=start_key or f"client/{uuid.uuid4().hex}",
            failed_rows=failed_rows,
        )
        with raising_noetl_errors():
            # Failed rows are looked for in the whole history of their loop.
            timeout = max(self._timeout, FAILED_ROWS_SECONDS) if failed_rows else self._timeout
            response = await self._stub.Redrive(request, timeout=timeout)
        return RedrivenExecution(
            execution_id=parse_id(response.execution_id),
            path=response.path,
            version=response.version,
            step=response.step,
            created=response.created,
            row_count=response.row_count,
        )

    async def read_logs(
        self,
        scope: Scope | None,
        execution_id: int,
        *,
        step: str = "",
        from_version: int = 0,
        follow: bool = False,
    ) -> AsyncIterator[LogBatch]:
        """What the calls of an execution printed; with `follow`, until it ends."""
        request = pb.ReadLogsRequest(
            scope=scope_message(scope),
            execution_id=str(execution_id),
            step=step,
            from_version=from_version,
            follow=follow,
        )
        with raising_noetl_errors():
            async for batch in self._stub.ReadLogs(request, timeout=NO_DEADLINE):
                yield log_batch(batch)
