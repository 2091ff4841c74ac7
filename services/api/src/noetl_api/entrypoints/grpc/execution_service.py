"""Executions over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
from noetl.execution.v1 import execution_pb2 as pb
from noetl.execution.v1 import execution_pb2_grpc as pb_grpc
from noetl_contracts.mapping import executions as mapping
from noetl_contracts.mapping.call_logs import call_log_message
from noetl_contracts.mapping.events import fence_of
from noetl_core.canonical import JsonObject, decode
from noetl_core.errors import InvalidPayload, NotCanonical
from noetl_core.ids import parse_id
from noetl_core.ports.steering import SteerAction
from noetl_servicekit.callers import current_caller

from noetl_api.application.redrive_execution import RedriveRequest
from noetl_api.application.start_execution import StartRequest
from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc.scopes import scope_of

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ExecutionService"].full_name


def register(server: grpc.aio.Server, use_cases: UseCases) -> None:
    """Serve the contract."""
    pb_grpc.add_ExecutionServiceServicer_to_server(ExecutionServicer(use_cases), server)


class ExecutionServicer(pb_grpc.ExecutionServiceServicer):
    """Translates; the use cases decide."""

    def __init__(self, use_cases: UseCases) -> None:
        self._start_execution = use_cases.start_execution
        self._query_executions = use_cases.query_executions
        self._cancel_execution = use_cases.cancel_execution
        self._steer_execution = use_cases.steer_execution
        self._finalize_execution = use_cases.finalize_execution
        self._redrive_execution = use_cases.redrive_execution
        self._read_logs = use_cases.read_logs

    async def Execute(  # noqa: N802 - named by the contract
        self, request: pb.ExecuteRequest, context: grpc.aio.ServicerContext[pb.ExecuteRequest, pb.ExecuteResponse]
    ) -> pb.ExecuteResponse:
        """Start a playbook."""
        started = await self._start_execution(
            current_caller(),
            scope_of(request.scope),
            StartRequest(
                path=request.path,
                version=request.version,
                catalog_id=request.catalog_id,
                payload=_payload(request.payload_json),
                start_key=request.start_key,
                parent_execution_id=_optional_id(request.parent_execution_id),
                parent_call=mapping.parent_call(request.parent_call) if request.HasField("parent_call") else None,
            ),
        )
        return pb.ExecuteResponse(
            execution_id=str(started.execution_id),
            created=started.created,
            path=started.path,
            version=started.version,
        )

    async def Get(  # noqa: N802 - named by the contract
        self, request: pb.GetRequest, context: grpc.aio.ServicerContext[pb.GetRequest, pb.GetResponse]
    ) -> pb.GetResponse:
        """One execution."""
        view = await self._query_executions.get(
            current_caller(),
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            min_version=request.min_version,
        )
        return pb.GetResponse(execution=mapping.execution_message(view))

    async def List(  # noqa: N802 - named by the contract
        self, request: pb.ListRequest, context: grpc.aio.ServicerContext[pb.ListRequest, pb.ListResponse]
    ) -> pb.ListResponse:
        """Executions, newest first."""
        page = await self._query_executions.list(
            current_caller(),
            scope_of(request.scope),
            status=request.status,
            path=request.path,
            parent_execution_id=_optional_id(request.parent_execution_id),
            size=request.page_size,
            token=request.page_token,
        )
        return pb.ListResponse(
            executions=[mapping.execution_message(view) for view in page.executions],
            next_page_token=page.next_page_token,
        )

    async def Cancel(  # noqa: N802 - named by the contract
        self, request: pb.CancelRequest, context: grpc.aio.ServicerContext[pb.CancelRequest, pb.CancelResponse]
    ) -> pb.CancelResponse:
        """End an execution now."""
        caller = current_caller()
        cancelled = await self._cancel_execution.under(caller, fence_of(request.fence))(
            caller,
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            reason=request.reason,
            cascade=not request.no_cascade,
        )
        return pb.CancelResponse(stream_version=cancelled.stream_version, cancelled_descendants=cancelled.descendants)

    async def ReadLogs(  # noqa: N802 - named by the contract
        self, request: pb.ReadLogsRequest, context: grpc.aio.ServicerContext[pb.ReadLogsRequest, pb.ReadLogsResponse]
    ) -> AsyncIterator[pb.ReadLogsResponse]:
        """What calls printed, then what the next ones print."""
        pages = self._read_logs.stream(
            current_caller(),
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            step=request.step,
            from_version=request.from_version,
            follow=request.follow,
        )
        async for page in pages:
            yield pb.ReadLogsResponse(
                logs=[call_log_message(call) for call in page.calls],
                next_version=page.next_version,
                terminal=page.terminal,
            )

    async def Pause(  # noqa: N802 - named by the contract
        self, request: pb.PauseRequest, context: grpc.aio.ServicerContext[pb.PauseRequest, pb.PauseResponse]
    ) -> pb.PauseResponse:
        """Issue and grant no commands until it is resumed."""
        steered = await self._steer_execution(
            current_caller(),
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            SteerAction.PAUSE,
            reason=request.reason,
            cascade=request.cascade,
        )
        return pb.PauseResponse(
            stream_version=steered.stream_version, status=steered.status, descendants=steered.descendants
        )

    async def Resume(  # noqa: N802 - named by the contract
        self, request: pb.ResumeRequest, context: grpc.aio.ServicerContext[pb.ResumeRequest, pb.ResumeResponse]
    ) -> pb.ResumeResponse:
        """Go on with what was held back."""
        steered = await self._steer_execution(
            current_caller(),
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            SteerAction.RESUME,
            reason=request.reason,
            cascade=request.cascade,
        )
        return pb.ResumeResponse(
            stream_version=steered.stream_version, status=steered.status, descendants=steered.descendants
        )

    async def Finalize(  # noqa: N802 - named by the contract
        self, request: pb.FinalizeRequest, context: grpc.aio.ServicerContext[pb.FinalizeRequest, pb.FinalizeResponse]
    ) -> pb.FinalizeResponse:
        """Force an end."""
        ended = await self._finalize_execution(
            current_caller(),
            scope_of(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            status=request.status,
            reason=request.reason,
        )
        return pb.FinalizeResponse(stream_version=ended.stream_version, status=ended.status)

    async def Redrive(  # noqa: N802 - named by the contract
        self, request: pb.RedriveRequest, context: grpc.aio.ServicerContext[pb.RedriveRequest, pb.RedriveResponse]
    ) -> pb.RedriveResponse:
        """Start a new execution at a step of an ended one."""
        redriven = await self._redrive_execution(
            current_caller(),
            scope_of(request.scope),
            RedriveRequest(
                execution_id=parse_id(request.execution_id, what="execution_id"),
                step=request.step,
                reason=request.reason,
                start_key=request.start_key,
                failed_rows=request.failed_rows,
            ),
        )
        return pb.RedriveResponse(
            execution_id=str(redriven.execution_id),
            created=redriven.created,
            path=redriven.path,
            version=redriven.version,
            step=redriven.step,
            row_count=redriven.row_count,
        )


def _optional_id(text: str) -> int | None:
    return parse_id(text, what="parent_execution_id") if text else None


def _payload(data: bytes) -> JsonObject:
    if not data:
        return {}
    try:
        value = decode(data)
    except NotCanonical as exc:
        raise InvalidPayload(f"the payload cannot be read: {exc.message}") from exc
    if not isinstance(value, dict):
        raise InvalidPayload("the payload is not a JSON object")
    return value
