"""Queries over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import grpc
from noetl.common.v1 import common_pb2 as common
from noetl.projection.v1 import projection_pb2 as pb
from noetl.projection.v1 import projection_pb2_grpc as pb_grpc
from noetl_contracts.mapping import evidence
from noetl_contracts.mapping import executions as mapping
from noetl_contracts.mapping import snapshots as snapshot_mapping
from noetl_core.errors import InvalidInput, NotFound
from noetl_core.ids import parse_id
from noetl_core.ports.deadlines import LateExecution, LatePlace
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import RowPlace
from noetl_core.ports.projection_store import SilentPlace
from noetl_core.ports.projections import SilentCommand
from noetl_core.ports.snapshot_store import SnapshotStore
from noetl_core.timestamps import format_time, parse_time
from noetl_servicekit.callers import Role, current_caller

from noetl_projector.application.answer_queries import AnswerQueries

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ProjectionService"].full_name

MAX_PAGE: Final = 1000
DEFAULT_EXECUTIONS: Final = 50
DEFAULT_COMMANDS: Final = 100
MAX_WANTED: Final = 200
MAX_WAIT_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 0.1
"""Kept of the caller's time for the answer to reach it."""


def register(server: grpc.aio.Server, queries: AnswerQueries, snapshots: SnapshotStore) -> None:
    """Serve the contract."""
    pb_grpc.add_ProjectionServiceServicer_to_server(ProjectionServicer(queries, snapshots), server)


class ProjectionServicer(pb_grpc.ProjectionServiceServicer):
    """Translates; only NoETL's own services ask here, everybody else asks api."""

    def __init__(self, queries: AnswerQueries, snapshots: SnapshotStore) -> None:
        self._queries = queries
        self._snapshots = snapshots

    async def GetExecution(  # noqa: N802 - named by the contract
        self,
        request: pb.GetExecutionRequest,
        context: grpc.aio.ServicerContext[pb.GetExecutionRequest, pb.GetExecutionResponse],
    ) -> pb.GetExecutionResponse:
        """One execution."""
        current_caller().require(Role.SERVICE)
        view = await self._queries.get_execution(
            _scope(request.scope),
            parse_id(request.execution_id, what="execution_id"),
            min_version=request.min_version,
            wait_seconds=_patience(context.time_remaining()),
        )
        return pb.GetExecutionResponse(execution=mapping.execution_message(view))

    async def ListExecutions(  # noqa: N802 - named by the contract
        self,
        request: pb.ListExecutionsRequest,
        context: grpc.aio.ServicerContext[pb.ListExecutionsRequest, pb.ListExecutionsResponse],
    ) -> pb.ListExecutionsResponse:
        """Executions, newest first."""
        current_caller().require(Role.SERVICE)
        whose = _scope(request.scope)
        if whose is None:
            raise InvalidInput("a listing names a tenant and an organization")
        page = await self._queries.list_executions(
            whose,
            status=request.status,
            path=request.path,
            parent_execution_id=(
                parse_id(request.parent_execution_id, what="parent_execution_id")
                if request.parent_execution_id
                else None
            ),
            page_size=_page_size(request.page_size, default=DEFAULT_EXECUTIONS),
            page_token=request.page_token,
        )
        return pb.ListExecutionsResponse(
            executions=[mapping.execution_message(view) for view in page.executions],
            next_page_token=page.next_page_token,
        )

    async def ListSilentCommands(  # noqa: N802 - named by the contract
        self,
        request: pb.ListSilentCommandsRequest,
        context: grpc.aio.ServicerContext[pb.ListSilentCommandsRequest, pb.ListSilentCommandsResponse],
    ) -> pb.ListSilentCommandsResponse:
        """Silent commands, longest silent first."""
        current_caller().require(Role.SERVICE)
        limit = _page_size(request.page_size, default=DEFAULT_COMMANDS)
        commands = await self._queries.silent_commands(limit=limit, after=silent_place(request.page_token))
        return pb.ListSilentCommandsResponse(
            commands=[mapping.silent_command_message(command) for command in commands],
            next_page_token=silent_token(commands[-1]) if len(commands) == limit else "",
        )

    async def ListPassedDeadlines(  # noqa: N802 - named by the contract
        self,
        request: pb.ListPassedDeadlinesRequest,
        context: grpc.aio.ServicerContext[pb.ListPassedDeadlinesRequest, pb.ListPassedDeadlinesResponse],
    ) -> pb.ListPassedDeadlinesResponse:
        """Late executions, longest overdue first."""
        current_caller().require(Role.SERVICE)
        limit = _page_size(request.page_size, default=DEFAULT_COMMANDS)
        late = await self._queries.passed_deadlines(limit=limit, after=late_place(request.page_token))
        return pb.ListPassedDeadlinesResponse(
            executions=[mapping.late_execution_message(one) for one in late],
            next_page_token=late_token(late[-1]) if len(late) == limit else "",
        )

    async def ListQuietExecutions(  # noqa: N802 - named by the contract
        self,
        request: pb.ListQuietExecutionsRequest,
        context: grpc.aio.ServicerContext[pb.ListQuietExecutionsRequest, pb.ListQuietExecutionsResponse],
    ) -> pb.ListQuietExecutionsResponse:
        """Quiet executions, oldest first."""
        current_caller().require(Role.SERVICE)
        if not request.quiet_seconds > 0:
            raise InvalidInput("quiet_seconds says for how long nothing has happened, and is more than 0")
        limit = _page_size(request.page_size, default=DEFAULT_EXECUTIONS)
        quiet = await self._queries.quiet_executions(
            quiet_seconds=request.quiet_seconds,
            limit=limit,
            after=parse_id(request.page_token, what="page_token") if request.page_token else 0,
        )
        return pb.ListQuietExecutionsResponse(
            executions=[mapping.quiet_execution_message(one) for one in quiet],
            next_page_token=str(quiet[-1].execution_id) if len(quiet) == limit else "",
        )

    async def GetSnapshot(  # noqa: N802 - named by the contract
        self,
        request: pb.GetSnapshotRequest,
        context: grpc.aio.ServicerContext[pb.GetSnapshotRequest, pb.GetSnapshotResponse],
    ) -> AsyncIterator[pb.GetSnapshotResponse]:
        """The newest snapshot, part by part; one that is replaced on the way ends early, and its reader finds out."""
        current_caller().require(Role.SERVICE)
        execution_id = parse_id(request.execution_id, what="execution_id")
        snapshot = await self._snapshots.find(
            _scope(request.scope),
            execution_id,
            at_or_below=request.at_or_below,
            rules=snapshot_mapping.rules(request.rules),
        )
        if snapshot is None:
            raise NotFound("snapshot", execution_id, code="snapshot.not_found")
        yield pb.GetSnapshotResponse(snapshot=snapshot_mapping.snapshot_message(snapshot))
        for number in range(snapshot.parts):
            part = await self._snapshots.part(snapshot, number)
            if part is None:
                return
            yield pb.GetSnapshotResponse(part=part)

    async def ListRows(  # noqa: N802 - named by the contract
        self, request: pb.ListRowsRequest, context: grpc.aio.ServicerContext[pb.ListRowsRequest, pb.ListRowsResponse]
    ) -> pb.ListRowsResponse:
        """Rows as they are stored."""
        current_caller().require(Role.SERVICE)
        if len(request.wanted) > MAX_WANTED:
            raise InvalidInput(f"rows of at most {MAX_WANTED} executions are listed together")
        page = await self._queries.list_rows(
            _scope(request.scope),
            evidence.wanted(request.wanted),
            after=RowPlace.from_token(request.page_token),
            wait_seconds=min(max(request.wait_seconds, 0.0), _patience(context.time_remaining())),
        )
        return pb.ListRowsResponse(page=evidence.row_page_message(page))

    async def ListLive(  # noqa: N802 - named by the contract
        self, request: pb.ListLiveRequest, context: grpc.aio.ServicerContext[pb.ListLiveRequest, pb.ListLiveResponse]
    ) -> pb.ListLiveResponse:
        """Executions that have a row."""
        current_caller().require(Role.SERVICE)
        after = request.after_execution_id
        page = await self._queries.list_live(
            _scope(request.scope),
            after=parse_id(after, what="after_execution_id") if after else 0,
            limit=_page_size(request.page_size, default=MAX_PAGE),
        )
        return pb.ListLiveResponse(page=evidence.live_message(page))


def late_token(late: LateExecution) -> str:
    """The place after this execution."""
    return f"{format_time(late.deadline)}/{late.execution_id}"


def late_place(token: str) -> LatePlace | None:
    """The place that a token names; an empty token is the start."""
    if not token:
        return None
    time, slash, execution_id = token.partition("/")
    if not slash:
        raise InvalidInput(f"{token!r} is not a page token")
    return parse_time(time), parse_id(execution_id)


def silent_token(command: SilentCommand) -> str:
    """The place after this command."""
    return f"{format_time(command.lease_until)}/{command.execution_id}/{command.command_id}"


def silent_place(token: str) -> SilentPlace | None:
    """The place that a token names; an empty token is the start."""
    if not token:
        return None
    parts = token.split("/", maxsplit=2)
    if len(parts) != 3:
        raise InvalidInput(f"{token!r} is not a page token")
    return parse_time(parts[0]), parse_id(parts[1]), parts[2]


def _scope(message: common.Scope) -> Scope | None:
    """Whose data; a service that names nobody asks for anybody's."""
    if not message.tenant_id and not message.organization_id:
        return None
    if not message.tenant_id or not message.organization_id:
        raise InvalidInput("a scope names both a tenant and an organization")
    return Scope(tenant_id=message.tenant_id, organization_id=message.organization_id)


def _page_size(asked: int, *, default: int) -> int:
    if not 0 <= asked <= MAX_PAGE:
        raise InvalidInput(f"a page has at most {MAX_PAGE} entries, not {asked}")
    return asked or default


def _patience(time_remaining: float | None) -> float:
    return (
        MAX_WAIT_SECONDS if time_remaining is None else min(max(time_remaining - ANSWER_SECONDS, 0), MAX_WAIT_SECONDS)
    )
