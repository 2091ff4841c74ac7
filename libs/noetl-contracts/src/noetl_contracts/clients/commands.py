"""Commands over gRPC; calls go to the planner that owns the execution's shard, and follow it when it moves."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import grpc
from noetl.command.v1 import command_pb2 as pb
from noetl.command.v1 import command_pb2_grpc as pb_grpc
from noetl_core.append import Fence
from noetl_core.canonical import JsonObject, encode
from noetl_core.children.state import ParkedCall
from noetl_core.envelope import StoredEvent
from noetl_core.errors import NoetlError, NotOwner, Unavailable
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import (
    UNANSWERED,
    Abandonment,
    ClaimOutcome,
    CommandKey,
    Completion,
    GrantedCommand,
    Heartbeats,
    ToldChunk,
    Variables,
    Worker,
)
from noetl_core.ports.deadlines import NOBODY_IN_PARTICULAR, DeadlinesPassed
from noetl_core.ports.steering import SteerAction, Steered
from noetl_core.sharding import shard_of

from noetl_contracts.mapping import commands as mapping
from noetl_contracts.mapping import streams
from noetl_contracts.mapping.events import fence_message, payload_ref_message, stored_message
from noetl_contracts.mapping.times import timestamp
from noetl_contracts.status import raising_noetl_errors

Answer = TypeVar("Answer")
_MAX_HOPS = 3


class CommandClient:
    """Port `Commands`, served by planners. Knows which address answered for which shard last."""

    def __init__(
        self,
        *,
        default_address: str,
        shard_count: int,
        connect: Callable[[str], grpc.aio.Channel],
        timeout: float = 10.0,
    ) -> None:
        self._default_address = default_address
        self._shard_count = shard_count
        self._connect = connect
        self._timeout = timeout
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[grpc.aio.Channel, pb_grpc.CommandServiceAsyncStub] = {}
        self._owners: dict[int, str] = {}

    async def close(self) -> None:
        """Close every connection."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        self._stubs.clear()

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        """Claim commands, each shard's from its owner; a shard without one does not keep others from being asked."""
        groups = self._by_shard(keys)
        answers = await asyncio.gather(
            *(self._claim_group(shard, worker, group) for shard, group in groups.items()), return_exceptions=True
        )
        outcomes: dict[CommandKey, ClaimOutcome] = {}
        for group, answer in zip(groups.values(), _usable(answers), strict=True):
            if isinstance(answer, NoetlError):
                outcomes.update({key: ClaimOutcome(key=key, refusal=UNANSWERED) for key in group})
            else:
                outcomes.update({outcome.key: outcome for outcome in answer})
        return tuple(outcomes[key] for key in keys)

    async def _claim_group(self, shard: int, worker: Worker, keys: Sequence[CommandKey]) -> list[ClaimOutcome]:
        request = pb.ClaimRequest(
            worker=mapping.worker_message(worker), keys=[mapping.key_message(key) for key in keys]
        )
        response = await self._call(shard, _claim(request, self._timeout))
        return [mapping.claim_outcome(one) for one in response.outcomes]

    async def wait_for_commands(
        self, address: str, worker: Worker, *, room: int, held: Collection[CommandKey], seconds: float
    ) -> tuple[GrantedCommand, ...]:
        """Wait at one planner; see the port `WaitingRoom`."""
        request = pb.WaitRequest(
            worker=mapping.worker_message(worker),
            room=room,
            wait=mapping.duration_message(seconds),
            held=[mapping.key_message(key) for key in held],
        )
        with raising_noetl_errors():
            response = await self._stub(self._channel(address)).Wait(request, timeout=seconds + self._timeout)
        return tuple(mapping.command(one) for one in response.commands)

    async def complete(
        self,
        worker: Worker,
        key: CommandKey,
        result: Mapping[str, Any],
        *,
        wants_next: bool,
        variables: Variables | None = None,
        logs: PayloadRef | None = None,
    ) -> Completion:
        """Deliver a result."""
        request = pb.CompleteRequest(
            worker=mapping.worker_message(worker),
            key=mapping.key_message(key),
            result_json=encode(dict(result)),
            wants_next=wants_next,
            set=mapping.variables_message(variables or Variables()),
            logs=payload_ref_message(logs),
        )
        response = await self._call(self._shard(key), _complete(request, self._timeout))
        return mapping.completion(response)

    async def tell_chunk(self, worker: Worker, key: CommandKey, chunk: ToldChunk) -> bool:
        """Tell a chunk of a command under way."""
        request = pb.TellChunkRequest(
            worker=mapping.worker_message(worker),
            key=mapping.key_message(key),
            chunk=streams.told_chunk_message(chunk),
        )
        return (await self._call(self._shard(key), _tell_chunk(request, self._timeout))).taken

    async def heartbeat(
        self, worker: Worker, keys: Sequence[CommandKey], *, progress: Mapping[CommandKey, JsonObject] | None = None
    ) -> Heartbeats:
        """Keep claims alive, each shard's with its owner; those of a shard without one stay unanswered."""
        groups, told = self._by_shard(keys), progress or {}
        answers = await asyncio.gather(
            *(self._heartbeat_group(shard, worker, group, told) for shard, group in groups.items()),
            return_exceptions=True,
        )
        lost: set[CommandKey] = set()
        unanswered: set[CommandKey] = set()
        for group, answer in zip(groups.values(), _usable(answers), strict=True):
            if isinstance(answer, NoetlError):
                unanswered.update(group)
            else:
                lost |= answer.lost
                unanswered |= answer.unanswered
        return Heartbeats(lost=frozenset(lost), unanswered=frozenset(unanswered))

    async def _heartbeat_group(
        self, shard: int, worker: Worker, keys: Sequence[CommandKey], progress: Mapping[CommandKey, JsonObject]
    ) -> Heartbeats:
        request = pb.HeartbeatRequest(
            worker=mapping.worker_message(worker),
            keys=[mapping.key_message(key) for key in keys],
            progress=[
                pb.CommandProgress(key=mapping.key_message(key), progress_json=encode(progress[key]))
                for key in keys
                if key in progress
            ],
        )
        return mapping.heartbeats(await self._call(shard, _heartbeat(request, self._timeout)))

    async def park(self, worker: Worker, key: CommandKey, call: ParkedCall, *, timeout_seconds: float) -> int:
        """Leave a command without a worker until its call is answered."""
        request = pb.ParkRequest(
            worker=mapping.worker_message(worker),
            key=mapping.key_message(key),
            call=mapping.parked_call_message(call),
            timeout=mapping.duration_message(timeout_seconds),
        )
        return (await self._call(self._shard(key), _park(request, self._timeout))).stream_version

    async def abandon(
        self,
        key: CommandKey,
        *,
        expected_aggregate_version: int,
        lease_until: datetime,
        reclaimer: str,
        fence: Fence | None = None,
    ) -> Abandonment:
        """Give up a silent attempt."""
        request = pb.AbandonRequest(
            key=mapping.key_message(key),
            expected_aggregate_version=expected_aggregate_version,
            lease_until=timestamp(lease_until),
            reclaimer=reclaimer,
            fence=fence_message(fence),
        )
        response = await self._call(self._shard(key), _abandon(request, self._timeout))
        return Abandonment(stream_version=response.stream_version, next_attempt=response.next_attempt)

    async def pass_deadlines(
        self, execution_id: int, *, through: datetime, reclaimer: str = NOBODY_IN_PARTICULAR, fence: Fence | None = None
    ) -> DeadlinesPassed:
        """Have passed deadlines of an execution recorded; port `Deadlines`."""
        request = pb.PassDeadlinesRequest(
            execution_id=str(execution_id),
            through=timestamp(through),
            reclaimer=reclaimer,
            fence=fence_message(fence),
        )
        response = await self._call(
            shard_of(execution_id, self._shard_count), lambda stub: stub.PassDeadlines(request, timeout=self._timeout)
        )
        return DeadlinesPassed(
            passed=response.passed, stream_version=response.stream_version, cascades=response.cascades
        )

    async def steer(self, execution_id: int, action: SteerAction, *, by: str, reason: str) -> Steered:
        """Pause or resume an execution; port `Steering`."""
        request = pb.SteerRequest(
            execution_id=str(execution_id), action=mapping.STEER_ACTIONS[action], by=by, reason=reason
        )
        response = await self._call(
            shard_of(execution_id, self._shard_count), lambda stub: stub.Steer(request, timeout=self._timeout)
        )
        return Steered(stream_version=response.stream_version, status=response.status)

    async def notice(self, execution_id: int, events: Sequence[StoredEvent], *, workload: bytes = b"") -> None:
        """Tell the owner of an execution what was just committed; port `Notices`."""
        request = pb.NoticeRequest(
            execution_id=str(execution_id), events=[stored_message(event) for event in events], workload=workload
        )
        await self._call(
            shard_of(execution_id, self._shard_count), lambda stub: stub.Notice(request, timeout=self._timeout)
        )

    def _shard(self, key: CommandKey) -> int:
        return shard_of(key.execution_id, self._shard_count)

    def _by_shard(self, keys: Sequence[CommandKey]) -> Mapping[int, list[CommandKey]]:
        groups: dict[int, list[CommandKey]] = defaultdict(list)
        for key in keys:
            groups[self._shard(key)].append(key)
        return groups

    async def call_owner(self, execution_id: int, call: Callable[[grpc.aio.Channel], Awaitable[Answer]]) -> Answer:
        """Ask the owner of an execution for something else than commands."""
        return await self._ask_owner(shard_of(execution_id, self._shard_count), call)

    async def _call(self, shard: int, call: Callable[[pb_grpc.CommandServiceAsyncStub], Awaitable[Answer]]) -> Answer:
        return await self._ask_owner(shard, lambda channel: call(self._stub(channel)))

    async def _ask_owner(self, shard: int, call: Callable[[grpc.aio.Channel], Awaitable[Answer]]) -> Answer:
        """Ask the owner; whoever is not names it, and an owner that is away is asked for at the front door."""
        for _ in range(_MAX_HOPS):
            address = self._owners.get(shard, self._default_address)
            try:
                with raising_noetl_errors():
                    return await call(self._channel(address))
            except NotOwner as elsewhere:
                if not elsewhere.address or elsewhere.address == address:
                    self._owners.pop(shard, None)
                    raise Unavailable(f"nobody plans shard {shard} at the moment") from elsewhere
                self._owners[shard] = elsewhere.address
            except Unavailable:
                if self._owners.pop(shard, None) is None:
                    raise
        raise Unavailable(f"the planner of shard {shard} keeps moving")

    def _stub(self, channel: grpc.aio.Channel) -> pb_grpc.CommandServiceAsyncStub:
        """One for all calls: making one prepares every method of the service."""
        if channel not in self._stubs:
            self._stubs[channel] = pb_grpc.CommandServiceStub(channel)
        return self._stubs[channel]

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._connect(address)
        return self._channels[address]


def _usable(answers: Sequence[Answer | BaseException]) -> list[Answer | NoetlError]:
    """Answers and refusals; if there are only refusals, the first one is raised, and a defect always is."""
    usable: list[Answer | NoetlError] = []
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, NoetlError):
            raise answer
        usable.append(answer)
    refusals = [answer for answer in usable if isinstance(answer, NoetlError)]
    if refusals and len(refusals) == len(usable):
        raise refusals[0]
    return usable


def _claim(
    request: pb.ClaimRequest, timeout: float
) -> Callable[[pb_grpc.CommandServiceAsyncStub], Awaitable[pb.ClaimResponse]]:
    return lambda stub: stub.Claim(request, timeout=timeout)


def _complete(
    request: pb.CompleteRequest, timeout: float
) -> Callable[[pb_grpc.CommandServiceAsyncStub], Awaitable[pb.CompleteResponse]]:
    return lambda stub: stub.Complete(request, timeout=timeout)


def _tell_chunk(
    request: pb.TellChunkRequest, timeout: float
) -> Callable[[pb_grpc.CommandServiceAsyncStub], Awaitable[pb.TellChunkResponse]]:
    return lambda stub: stub.TellChunk(request, timeout=timeout)


def _heartbeat(
    request: pb.HeartbeatRequest, timeout: float
) -> Callable[[pb_grpc.CommandServiceAsyncStub], Awaitable[pb.HeartbeatResponse]]:
    return lambda stub: stub.Heartbeat(request, timeout=timeout)


def _park(
    request: pb.ParkRequest, timeout: float
) -> Callable[[pb_grpc.CommandServiceAsyncStub], Awaitable[pb.ParkResponse]]:
    return lambda stub: stub.Park(request, timeout=timeout)


def _abandon(
    request: pb.AbandonRequest, timeout: float
) -> Callable[[pb_grpc.CommandServiceAsyncStub], Awaitable[pb.AbandonResponse]]:
    return lambda stub: stub.Abandon(request, timeout=timeout)
