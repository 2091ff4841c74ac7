"""Executions as messages."""

from __future__ import annotations

from noetl.execution.v1 import execution_pb2 as pb
from noetl.projection.v1 import projection_pb2 as projection_pb
from noetl_core.canonical import encode
from noetl_core.children.state import StartingCall
from noetl_core.ids import parse_id
from noetl_core.ports.deadlines import LateExecution
from noetl_core.ports.projections import ExecutionPage, ExecutionView, SilentCommand
from noetl_core.ports.quiet import QuietExecution

from noetl_contracts.mapping.events import json_object
from noetl_contracts.mapping.times import moment, optional_timestamp, timestamp


def execution_message(view: ExecutionView) -> pb.Execution:
    """An execution as a message."""
    return pb.Execution(
        execution_id=str(view.execution_id),
        path=view.path,
        version=view.version,
        status=view.status,
        last_event_type=view.last_event_type,
        last_node_name=view.last_node_name,
        start_time=timestamp(view.start_time),
        end_time=optional_timestamp(view.end_time),
        error_json=encode(dict(view.error)) if view.error else b"",
        state_json=encode(dict(view.state)) if view.state else b"",
        stream_version=view.stream_version,
        parent_execution_id=view.parent_execution_id,
        tenant_id=view.tenant_id,
        organization_id=view.organization_id,
        catalog_id=view.catalog_id,
        upcasters=view.upcasters,
    )


def execution(message: pb.Execution) -> ExecutionView:
    """An execution."""
    return ExecutionView(
        execution_id=parse_id(message.execution_id),
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        path=message.path,
        version=message.version,
        catalog_id=message.catalog_id,
        status=message.status,
        last_event_type=message.last_event_type,
        last_node_name=message.last_node_name,
        start_time=moment(message.start_time),
        end_time=moment(message.end_time) if message.HasField("end_time") else None,
        error=json_object(message.error_json, "error_json") or None,
        state=json_object(message.state_json, "state_json"),
        stream_version=message.stream_version,
        parent_execution_id=message.parent_execution_id,
        upcasters=message.upcasters,
    )


def parent_call_message(call: StartingCall) -> pb.ParentCall:
    """A call that starts a child, as a message."""
    return pb.ParentCall(
        call_id=call.call_id,
        command_id=call.command_id,
        step=call.step,
        pool=call.pool,
        waits=call.waits,
        pipeline=call.pipeline,
    )


def parent_call(message: pb.ParentCall) -> StartingCall:
    """A call that starts a child."""
    return StartingCall(
        call_id=message.call_id,
        command_id=message.command_id,
        step=message.step,
        pool=message.pool,
        waits=message.waits,
        pipeline=message.pipeline,
    )


def execution_page(message: pb.ListResponse | projection_pb.ListExecutionsResponse) -> ExecutionPage:
    """A page of executions."""
    return ExecutionPage(
        executions=tuple(execution(one) for one in message.executions),
        next_page_token=message.next_page_token,
    )


def late_execution_message(late: LateExecution) -> projection_pb.LateExecution:
    """A late execution as a message."""
    return projection_pb.LateExecution(
        execution_id=str(late.execution_id),
        tenant_id=late.tenant_id,
        organization_id=late.organization_id,
        deadline=timestamp(late.deadline),
        cascades=late.cascades,
    )


def late_execution(message: projection_pb.LateExecution) -> LateExecution:
    """A late execution."""
    return LateExecution(
        execution_id=parse_id(message.execution_id),
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        deadline=moment(message.deadline),
        cascades=message.cascades,
    )


def quiet_execution_message(quiet: QuietExecution) -> projection_pb.QuietExecution:
    """A quiet execution as a message."""
    return projection_pb.QuietExecution(
        execution_id=str(quiet.execution_id),
        tenant_id=quiet.tenant_id,
        organization_id=quiet.organization_id,
        path=quiet.path,
        quiet_since=timestamp(quiet.quiet_since),
    )


def quiet_execution(message: projection_pb.QuietExecution) -> QuietExecution:
    """A quiet execution."""
    return QuietExecution(
        execution_id=parse_id(message.execution_id),
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        path=message.path,
        quiet_since=moment(message.quiet_since),
    )


def silent_command_message(command: SilentCommand) -> projection_pb.SilentCommand:
    """A silent command as a message."""
    return projection_pb.SilentCommand(
        execution_id=str(command.execution_id),
        command_id=command.command_id,
        tenant_id=command.tenant_id,
        organization_id=command.organization_id,
        step=command.step,
        attempt=command.attempt,
        worker_id=command.worker_id,
        aggregate_version=command.aggregate_version,
        lease_until=timestamp(command.lease_until),
        trace=command.trace,
    )


def silent_command(message: projection_pb.SilentCommand) -> SilentCommand:
    """A silent command."""
    return SilentCommand(
        execution_id=parse_id(message.execution_id),
        command_id=message.command_id,
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        step=message.step,
        attempt=message.attempt,
        worker_id=message.worker_id,
        aggregate_version=message.aggregate_version,
        lease_until=moment(message.lease_until),
        trace=message.trace,
    )
