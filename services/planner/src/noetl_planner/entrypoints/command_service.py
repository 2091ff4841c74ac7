"""Claims and completions over gRPC."""

from __future__ import annotations

from typing import Protocol

import grpc
from noetl.command.v1 import command_pb2 as pb
from noetl.command.v1 import command_pb2_grpc as pb_grpc
from noetl_contracts.mapping import commands as mapping
from noetl_contracts.mapping import streams
from noetl_contracts.mapping.events import fence_of, json_object, payload_ref, stored
from noetl_contracts.mapping.times import moment
from noetl_core.errors import NotPermitted
from noetl_core.ids import parse_id
from noetl_core.ports.commands import Commands, WaitingRoom
from noetl_core.ports.deadlines import NOBODY_IN_PARTICULAR, Deadlines
from noetl_core.ports.notices import Notices
from noetl_core.ports.steering import Steering
from noetl_servicekit.callers import Role, current_caller

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["CommandService"].full_name


class Planned(Commands, WaitingRoom, Deadlines, Steering, Notices, Protocol):
    """Everything that a planner does for others, behind one object."""


def register(server: grpc.aio.Server, planned: Planned) -> None:
    """Serve the contract."""
    pb_grpc.add_CommandServiceServicer_to_server(CommandServicer(planned), server)


class CommandServicer(pb_grpc.CommandServiceServicer):
    """Translates; the actors decide."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned

    async def Claim(  # noqa: N802 - named by the contract
        self, request: pb.ClaimRequest, context: grpc.aio.ServicerContext[pb.ClaimRequest, pb.ClaimResponse]
    ) -> pb.ClaimResponse:
        """Claim commands."""
        _only_services()
        outcomes = await self._planned.claim(mapping.worker(request.worker), [mapping.key(key) for key in request.keys])
        return pb.ClaimResponse(outcomes=[mapping.claim_outcome_message(outcome) for outcome in outcomes])

    async def Wait(  # noqa: N802 - named by the contract
        self, request: pb.WaitRequest, context: grpc.aio.ServicerContext[pb.WaitRequest, pb.WaitResponse]
    ) -> pb.WaitResponse:
        """Claim what is issued while somebody waits."""
        _only_services()
        commands = await self._planned.wait_for_commands(
            mapping.worker(request.worker),
            room=request.room,
            held=frozenset(mapping.key(key) for key in request.held),
            seconds=request.wait.seconds + request.wait.nanos / 1_000_000_000,
        )
        return pb.WaitResponse(commands=[mapping.command_message(command) for command in commands])

    async def Complete(  # noqa: N802 - named by the contract
        self, request: pb.CompleteRequest, context: grpc.aio.ServicerContext[pb.CompleteRequest, pb.CompleteResponse]
    ) -> pb.CompleteResponse:
        """Take a result."""
        _only_services()
        completion = await self._planned.complete(
            mapping.worker(request.worker),
            mapping.key(request.key),
            json_object(request.result_json, "result_json"),
            wants_next=request.wants_next,
            variables=mapping.variables(request.set),
            logs=payload_ref(request.logs) if request.HasField("logs") else None,
        )
        return mapping.completion_message(completion)

    async def TellChunk(  # noqa: N802 - named by the contract
        self,
        request: pb.TellChunkRequest,
        context: grpc.aio.ServicerContext[pb.TellChunkRequest, pb.TellChunkResponse],
    ) -> pb.TellChunkResponse:
        """Take a chunk of a command under way."""
        _only_services()
        taken = await self._planned.tell_chunk(
            mapping.worker(request.worker), mapping.key(request.key), streams.told_chunk(request.chunk)
        )
        return pb.TellChunkResponse(taken=taken)

    async def Heartbeat(  # noqa: N802 - named by the contract
        self, request: pb.HeartbeatRequest, context: grpc.aio.ServicerContext[pb.HeartbeatRequest, pb.HeartbeatResponse]
    ) -> pb.HeartbeatResponse:
        """Keep claims alive."""
        _only_services()
        beats = await self._planned.heartbeat(
            mapping.worker(request.worker),
            [mapping.key(key) for key in request.keys],
            progress={mapping.key(one.key): mapping.progress(one.progress_json) for one in request.progress},
        )
        return mapping.heartbeats_message(beats)

    async def Park(  # noqa: N802 - named by the contract
        self, request: pb.ParkRequest, context: grpc.aio.ServicerContext[pb.ParkRequest, pb.ParkResponse]
    ) -> pb.ParkResponse:
        """Leave a command without a worker."""
        _only_services()
        version = await self._planned.park(
            mapping.worker(request.worker),
            mapping.key(request.key),
            mapping.parked_call(request.call),
            timeout_seconds=request.timeout.seconds + request.timeout.nanos / 1_000_000_000,
        )
        return pb.ParkResponse(stream_version=version)

    async def Abandon(  # noqa: N802 - named by the contract
        self, request: pb.AbandonRequest, context: grpc.aio.ServicerContext[pb.AbandonRequest, pb.AbandonResponse]
    ) -> pb.AbandonResponse:
        """Give up a silent attempt."""
        _only_services()
        abandonment = await self._planned.abandon(
            mapping.key(request.key),
            expected_aggregate_version=request.expected_aggregate_version,
            lease_until=moment(request.lease_until),
            reclaimer=request.reclaimer,
            fence=fence_of(request.fence),
        )
        return pb.AbandonResponse(stream_version=abandonment.stream_version, next_attempt=abandonment.next_attempt)

    async def PassDeadlines(  # noqa: N802 - named by the contract
        self,
        request: pb.PassDeadlinesRequest,
        context: grpc.aio.ServicerContext[pb.PassDeadlinesRequest, pb.PassDeadlinesResponse],
    ) -> pb.PassDeadlinesResponse:
        """Record deadlines that have passed."""
        _only_services()
        recorded = await self._planned.pass_deadlines(
            parse_id(request.execution_id, what="execution_id"),
            through=moment(request.through),
            reclaimer=request.reclaimer or NOBODY_IN_PARTICULAR,
            fence=fence_of(request.fence),
        )
        return pb.PassDeadlinesResponse(
            passed=recorded.passed, stream_version=recorded.stream_version, cascades=recorded.cascades
        )

    async def Steer(  # noqa: N802 - named by the contract
        self, request: pb.SteerRequest, context: grpc.aio.ServicerContext[pb.SteerRequest, pb.SteerResponse]
    ) -> pb.SteerResponse:
        """Pause or resume an execution."""
        _only_services()
        steered = await self._planned.steer(
            parse_id(request.execution_id, what="execution_id"),
            mapping.steer_action(request.action),
            by=request.by,
            reason=request.reason,
        )
        return pb.SteerResponse(stream_version=steered.stream_version, status=steered.status)

    async def Notice(  # noqa: N802 - named by the contract
        self, request: pb.NoticeRequest, context: grpc.aio.ServicerContext[pb.NoticeRequest, pb.NoticeResponse]
    ) -> pb.NoticeResponse:
        """Take in what is being committed."""
        _only_services()
        await self._planned.notice(
            parse_id(request.execution_id, what="execution_id"),
            [stored(event) for event in request.events],
            workload=request.workload,
        )
        return pb.NoticeResponse()


def _only_services() -> None:
    if not current_caller().may(Role.SERVICE):
        raise NotPermitted("commands are for NoETL's own workers")
