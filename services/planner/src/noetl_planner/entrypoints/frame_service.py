"""The frame contract over gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import grpc
from noetl.frame.v1 import frame_pb2 as pb
from noetl.frame.v1 import frame_pb2_grpc as pb_grpc
from noetl_contracts.mapping import commands as command_mapping
from noetl_contracts.mapping import frames as mapping
from noetl_contracts.mapping.events import fence_of, json_object, payload_ref
from noetl_contracts.mapping.times import moment
from noetl_core.errors import NotPermitted
from noetl_core.ids import execution_of, stage_of_frame
from noetl_core.ports.frames import FrameBeats, FrameKey, Frames, StageHolders
from noetl_core.values import replace
from noetl_servicekit.callers import Role, current_caller
from noetl_servicekit.stage_tokens import StageCaller

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["FrameService"].full_name


def register(server: grpc.aio.Server, frames: Frames, holders: StageHolders) -> None:
    """Serve the contract."""
    pb_grpc.add_FrameServiceServicer_to_server(FrameServicer(frames, holders), server)


class FrameServicer(pb_grpc.FrameServiceServicer):
    """Translates; the actors decide."""

    def __init__(self, frames: Frames, holders: StageHolders, *, now: Callable[[], float] = time.time) -> None:
        self._frames = frames
        self._holders = holders
        self._now = now

    async def Claim(  # noqa: N802 - named by the contract
        self, request: pb.ClaimRequest, context: grpc.aio.ServicerContext[pb.ClaimRequest, pb.ClaimResponse]
    ) -> pb.ClaimResponse:
        """Claim the next frames of slots."""
        _only_services(*(slot.stage_id for slot in request.slots))
        claims = await self._frames.claim_frames(
            command_mapping.worker(request.worker), [mapping.slot(slot) for slot in request.slots]
        )
        return pb.ClaimResponse(outcomes=[mapping.claim_message(claim) for claim in claims])

    async def Start(  # noqa: N802 - named by the contract
        self, request: pb.StartRequest, context: grpc.aio.ServicerContext[pb.StartRequest, pb.StartResponse]
    ) -> pb.StartResponse:
        """Take the rows that a frame has claimed."""
        _only_services(stage_of_frame(request.key.frame_id))
        start = await self._frames.start_frame(
            command_mapping.worker(request.worker),
            mapping.key(request.key),
            payload_ref(request.rows),
            row_count=request.row_count,
        )
        return pb.StartResponse(start=start)

    async def Commit(  # noqa: N802 - named by the contract
        self, request: pb.CommitRequest, context: grpc.aio.ServicerContext[pb.CommitRequest, pb.CommitResponse]
    ) -> pb.CommitResponse:
        """Take the outcomes of a frame."""
        _only_services(stage_of_frame(request.key.frame_id))
        commit = await self._frames.commit_frame(
            command_mapping.worker(request.worker),
            mapping.key(request.key),
            mapping.committed_rows(request),
            wants_next=request.wants_next,
            variables=command_mapping.variables(request.set),
            logs=payload_ref(request.logs) if request.HasField("logs") else None,
        )
        return pb.CommitResponse(next=mapping.frame_message(commit.next), stream_version=commit.stream_version)

    async def Fail(  # noqa: N802 - named by the contract
        self, request: pb.FailRequest, context: grpc.aio.ServicerContext[pb.FailRequest, pb.FailResponse]
    ) -> pb.FailResponse:
        """Take the failure of an attempt."""
        _only_services(stage_of_frame(request.key.frame_id))
        commit = await self._frames.fail_frame(
            command_mapping.worker(request.worker),
            mapping.key(request.key),
            json_object(request.result_json, "result_json"),
            retryable=request.retryable,
            wants_next=request.wants_next,
            logs=payload_ref(request.logs) if request.HasField("logs") else None,
        )
        return pb.FailResponse(next=mapping.frame_message(commit.next), stream_version=commit.stream_version)

    async def Heartbeat(  # noqa: N802 - named by the contract
        self, request: pb.HeartbeatRequest, context: grpc.aio.ServicerContext[pb.HeartbeatRequest, pb.HeartbeatResponse]
    ) -> pb.HeartbeatResponse:
        """Keep frames."""
        _only_services(*(stage_of_frame(key.frame_id) for key in request.keys))
        keys = [mapping.key(key) for key in request.keys]
        beats = await self._frames.heartbeat_frames(
            command_mapping.worker(request.worker),
            keys,
            lease_seconds=mapping.lease_of(request.lease_seconds),
            progress={mapping.key(one.key): command_mapping.progress(one.progress_json) for one in request.progress},
        )
        return mapping.beats_message(replace(beats, token=self._token_for(beats, keys)))

    def _token_for(self, beats: FrameBeats, keys: Sequence[FrameKey]) -> str:
        """Whoever keeps a frame may go on for longer than its token; a stage without frames needs none."""
        caller = current_caller()
        is_any_kept = any(key not in beats.lost and key not in beats.unanswered for key in keys)
        return caller.renewed(now=self._now()) if isinstance(caller, StageCaller) and is_any_kept else ""

    async def Abandon(  # noqa: N802 - named by the contract
        self, request: pb.AbandonRequest, context: grpc.aio.ServicerContext[pb.AbandonRequest, pb.AbandonResponse]
    ) -> pb.AbandonResponse:
        """Give up a silent attempt."""
        _only_services()
        version = await self._frames.abandon_frame(
            mapping.key(request.key),
            expected_aggregate_version=request.expected_aggregate_version,
            lease_until=moment(request.lease_until),
            reclaimer=request.reclaimer,
            fence=fence_of(request.fence),
        )
        return pb.AbandonResponse(stream_version=version)

    async def ListHolders(  # noqa: N802 - named by the contract
        self,
        request: pb.ListHoldersRequest,
        context: grpc.aio.ServicerContext[pb.ListHoldersRequest, pb.ListHoldersResponse],
    ) -> pb.ListHoldersResponse:
        """Say who has frames of a stage."""
        _only_services(request.stage_id)
        execution_id = execution_of(request.stage_id, what="stage_id")
        holders = await self._holders.holders_of(execution_id, request.stage_id)
        return pb.ListHoldersResponse(
            holders=[pb.SlotHolder(slot=slot, worker_id=worker_id) for slot, worker_id in sorted(holders.items())]
        )


def _only_services(*stages: str) -> None:
    """Workers have all frames, slots on executors those of their stage."""
    caller = current_caller()
    if not caller.may(Role.SERVICE):
        raise NotPermitted("frames are for NoETL's own workers")
    if isinstance(caller, StageCaller):
        for stage_id in stages:
            caller.require_stage(stage_id)
