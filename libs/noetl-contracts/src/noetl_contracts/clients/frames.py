"""Frames over gRPC; calls go to the planner that owns the execution's shard, as those for commands do."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import grpc
from noetl.frame.v1 import frame_pb2 as pb
from noetl.frame.v1 import frame_pb2_grpc as pb_grpc
from noetl_core.append import Fence
from noetl_core.canonical import JsonObject, encode
from noetl_core.errors import NoetlError
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import UNANSWERED, Variables, Worker
from noetl_core.ports.frames import CommittedRows, FrameBeats, FrameClaim, FrameCommit, FrameKey, StageSlot

from noetl_contracts.clients.commands import CommandClient
from noetl_contracts.mapping import commands as command_mapping
from noetl_contracts.mapping import frames as mapping
from noetl_contracts.mapping.events import fence_message, payload_ref_message
from noetl_contracts.mapping.times import timestamp

Named = TypeVar("Named", StageSlot, FrameKey)


class FrameClient:
    """Ports `Frames` and `StageHolders`, served by planners; finds them as the client for commands does."""

    def __init__(self, owners: CommandClient, *, timeout: float = 10.0) -> None:
        self._owners = owners
        self._timeout = timeout

    async def claim_frames(self, worker: Worker, slots: Sequence[StageSlot]) -> tuple[FrameClaim, ...]:
        """Claim frames, each execution's from its owner; one without an owner does not keep others from being asked."""
        groups = _by_execution(slots)
        answers = await asyncio.gather(*(self._claim(worker, group) for group in groups.values()))
        found = dict(zip(groups, answers, strict=True))
        return tuple(found[slot.execution_id].pop(0) for slot in slots)

    async def _claim(self, worker: Worker, slots: Sequence[StageSlot]) -> list[FrameClaim]:
        request = pb.ClaimRequest(
            worker=command_mapping.worker_message(worker), slots=[mapping.slot_message(slot) for slot in slots]
        )
        try:
            response = await self._owners.call_owner(
                slots[0].execution_id, lambda channel: _stub(channel).Claim(request, timeout=self._timeout)
            )
        except NoetlError as exc:
            refusal = UNANSWERED if exc.retryable else exc.code
            return [FrameClaim(slot=slot, refusal=refusal) for slot in slots]
        return [mapping.claim(one) for one in response.outcomes]

    async def start_frame(self, worker: Worker, key: FrameKey, rows: PayloadRef, *, row_count: int) -> int:
        """Tell which rows a frame has claimed."""
        request = pb.StartRequest(
            worker=command_mapping.worker_message(worker),
            key=mapping.key_message(key),
            rows=payload_ref_message(rows),
            row_count=row_count,
        )
        response = await self._owners.call_owner(
            key.execution_id, lambda channel: _stub(channel).Start(request, timeout=self._timeout)
        )
        return response.start

    async def commit_frame(
        self,
        worker: Worker,
        key: FrameKey,
        rows: CommittedRows,
        *,
        wants_next: bool,
        variables: Variables | None = None,
        logs: PayloadRef | None = None,
    ) -> FrameCommit:
        """Deliver the outcomes of a frame."""
        request = pb.CommitRequest(
            worker=command_mapping.worker_message(worker),
            key=mapping.key_message(key),
            result_json=encode(dict(rows.result)),
            stop=rows.stop,
            success=rows.success,
            failed=rows.failed,
            breaks=rows.breaks,
            first_error_json=encode(dict(rows.first_error)) if rows.first_error else b"",
            wants_next=wants_next,
            set=command_mapping.variables_message(variables or Variables()),
            logs=payload_ref_message(logs),
            metrics_json=encode(dict(rows.metrics)) if rows.metrics else b"",
        )
        response = await self._owners.call_owner(
            key.execution_id, lambda channel: _stub(channel).Commit(request, timeout=self._timeout)
        )
        return mapping.commit(response)

    async def fail_frame(
        self,
        worker: Worker,
        key: FrameKey,
        result: Mapping[str, Any],
        *,
        retryable: bool,
        wants_next: bool,
        logs: PayloadRef | None = None,
    ) -> FrameCommit:
        """Tell that an attempt failed as a whole."""
        request = pb.FailRequest(
            worker=command_mapping.worker_message(worker),
            key=mapping.key_message(key),
            result_json=encode(dict(result)),
            retryable=retryable,
            wants_next=wants_next,
            logs=payload_ref_message(logs),
        )
        response = await self._owners.call_owner(
            key.execution_id, lambda channel: _stub(channel).Fail(request, timeout=self._timeout)
        )
        return mapping.commit(response)

    async def heartbeat_frames(
        self,
        worker: Worker,
        keys: Sequence[FrameKey],
        *,
        lease_seconds: float = 0,
        progress: Mapping[FrameKey, JsonObject] | None = None,
    ) -> FrameBeats:
        """Keep frames, each execution's with its owner; those of one without stay unanswered."""
        groups = _by_execution(keys).values()
        beats = await asyncio.gather(*(self._beat(worker, group, lease_seconds, progress or {}) for group in groups))
        return FrameBeats(
            lost=frozenset[FrameKey]().union(*(one.lost for one in beats)),
            unanswered=frozenset[FrameKey]().union(*(one.unanswered for one in beats)),
            token=next((one.token for one in beats if one.token), ""),
        )

    async def _beat(
        self, worker: Worker, keys: Sequence[FrameKey], lease_seconds: float, progress: Mapping[FrameKey, JsonObject]
    ) -> FrameBeats:
        request = pb.HeartbeatRequest(
            worker=command_mapping.worker_message(worker),
            keys=[mapping.key_message(key) for key in keys],
            lease_seconds=lease_seconds,
            progress=[
                pb.FrameProgress(key=mapping.key_message(key), progress_json=encode(progress[key]))
                for key in keys
                if key in progress
            ],
        )
        try:
            response = await self._owners.call_owner(
                keys[0].execution_id, lambda channel: _stub(channel).Heartbeat(request, timeout=self._timeout)
            )
        except NoetlError:
            return FrameBeats(unanswered=frozenset(keys))
        return mapping.beats(response)

    async def abandon_frame(
        self,
        key: FrameKey,
        *,
        expected_aggregate_version: int,
        lease_until: datetime,
        reclaimer: str,
        fence: Fence | None = None,
    ) -> int:
        """Give up a silent attempt."""
        request = pb.AbandonRequest(
            key=mapping.key_message(key),
            expected_aggregate_version=expected_aggregate_version,
            lease_until=timestamp(lease_until),
            reclaimer=reclaimer,
            fence=fence_message(fence),
        )
        response = await self._owners.call_owner(
            key.execution_id, lambda channel: _stub(channel).Abandon(request, timeout=self._timeout)
        )
        return response.stream_version

    async def holders_of(self, execution_id: int, stage_id: str) -> Mapping[int, str]:
        """Who has frames of a stage."""
        request = pb.ListHoldersRequest(stage_id=stage_id)
        response = await self._owners.call_owner(
            execution_id, lambda channel: _stub(channel).ListHolders(request, timeout=self._timeout)
        )
        return {holder.slot: holder.worker_id for holder in response.holders}


def _by_execution(named: Sequence[Named]) -> Mapping[int, list[Named]]:
    groups: dict[int, list[Named]] = defaultdict(list)
    for one in named:
        groups[one.execution_id].append(one)
    return groups


def _stub(channel: grpc.aio.Channel) -> pb_grpc.FrameServiceAsyncStub:
    stub: pb_grpc.FrameServiceAsyncStub = pb_grpc.FrameServiceStub(channel)
    return stub
