"""Every open execution of the shards that this planner owns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from noetl_core.append import Fence, Hint
from noetl_core.canonical import JsonObject
from noetl_core.children.state import ParkedCall
from noetl_core.envelope import StoredEvent
from noetl_core.errors import NoetlError, NotOwner
from noetl_core.fold import State
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
from noetl_core.ports.frames import CommittedRows, FrameBeats, FrameClaim, FrameCommit, FrameKey, StageSlot
from noetl_core.ports.steering import SteerAction, Steered
from noetl_core.sharding import shard_of

from noetl_planner.application.actor import Actor
from noetl_planner.application.asks import (
    Abandon,
    AbandonFrame,
    BeatFrame,
    Claim,
    ClaimFrame,
    Complete,
    EndFrame,
    Heartbeat,
    LookAtStage,
    Park,
    PassDeadlines,
    StartFrame,
    Steer,
    TellChunk,
)
from noetl_planner.application.waiting_workers import WaitingWorkers, nobody_waits
from noetl_planner.telemetry import PlannerMetrics

SHOWN_STUCK: Final = 5


class Actors:
    """Finds or makes the actor of an execution, and lets go of those that are over. Port `Commands`."""

    def __init__(
        self,
        *,
        shard_count: int,
        owns: Callable[[int], bool],
        owner_address: Callable[[int], str | None],
        make_actor: Callable[[int, int], Actor],
        metrics: PlannerMetrics,
        waiting: WaitingWorkers | None = None,
    ) -> None:
        self._shard_count = shard_count
        self._owns = owns
        self._owner_address = owner_address
        self._make_actor = make_actor
        self._metrics = metrics
        self._waiting = waiting or nobody_waits()
        self._actors: dict[int, Actor] = {}

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        """Claim commands; all asks are queued before the first is awaited, so that one append serves them."""
        asks = [Claim(worker=worker, command_id=key.command_id) for key in keys]
        for key, ask in zip(keys, asks, strict=True):
            self._actor(key.execution_id).ask(ask)
        answers = await asyncio.gather(*(ask.answer for ask in asks), return_exceptions=True)
        return tuple(_outcome(key, answer) for key, answer in zip(keys, answers, strict=True))

    async def wait_for_commands(
        self, worker: Worker, *, room: int, held: Collection[CommandKey], seconds: float
    ) -> tuple[GrantedCommand, ...]:
        """Wait for commands of any execution; port `WaitingRoom`."""
        return await self._waiting.wait(worker, room=room, held=held, seconds=seconds, again=self._granted_again)

    def _granted_again(self, worker: Worker, key: CommandKey) -> GrantedCommand | None:
        actor = self._actors.get(key.execution_id)
        return actor.granted_again(worker, key.command_id) if actor is not None else None

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
        """Take a result."""
        ask = Complete(
            worker=worker,
            command_id=key.command_id,
            result=result,
            wants_next=wants_next,
            variables=variables or Variables(),
            logs=logs,
        )
        self._actor(key.execution_id).ask(ask)
        return await ask.answer

    async def tell_chunk(self, worker: Worker, key: CommandKey, chunk: ToldChunk) -> bool:
        """Take a chunk of a command under way, if there is room for it."""
        ask = TellChunk(worker=worker, command_id=key.command_id, chunk=chunk)
        self._actor(key.execution_id).ask(ask)
        return await ask.answer

    async def heartbeat(
        self, worker: Worker, keys: Sequence[CommandKey], *, progress: Mapping[CommandKey, JsonObject] | None = None
    ) -> Heartbeats:
        """Keep claims alive; one execution in trouble does not keep the others from being renewed."""
        told = progress or {}
        asks = [Heartbeat(worker=worker, command_id=key.command_id, progress=told.get(key)) for key in keys]
        for key, ask in zip(keys, asks, strict=True):
            self._actor(key.execution_id).ask(ask)
        answers = await asyncio.gather(*(ask.answer for ask in asks), return_exceptions=True)
        answered = list(zip(keys, answers, strict=True))
        return Heartbeats(
            lost=frozenset(key for key, counts in answered if counts is False),
            unanswered=frozenset(key for key, counts in answered if isinstance(counts, BaseException)),
        )

    async def park(self, worker: Worker, key: CommandKey, call: ParkedCall, *, timeout_seconds: float) -> int:
        """Leave a command without a worker."""
        ask = Park(worker=worker, command_id=key.command_id, call=call, timeout_seconds=timeout_seconds)
        self._actor(key.execution_id).ask(ask)
        return await ask.answer

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
        ask = Abandon(
            command_id=key.command_id,
            expected_aggregate_version=expected_aggregate_version,
            lease_until=lease_until,
            reclaimer=reclaimer,
            fence=fence,
        )
        self._actor(key.execution_id).ask(ask)
        return await ask.answer

    async def claim_frames(self, worker: Worker, slots: Sequence[StageSlot]) -> tuple[FrameClaim, ...]:
        """Claim frames; port `Frames`. All asks are queued before the first is awaited, as with commands."""
        asks = [ClaimFrame(worker=worker, slot=slot) for slot in slots]
        for slot, ask in zip(slots, asks, strict=True):
            self._actor(slot.execution_id).ask(ask)
        answers = await asyncio.gather(*(ask.answer for ask in asks), return_exceptions=True)
        return tuple(_frame_claim(slot, answer) for slot, answer in zip(slots, answers, strict=True))

    async def start_frame(self, worker: Worker, key: FrameKey, rows: PayloadRef, *, row_count: int) -> int:
        """Take the rows that a frame has claimed."""
        ask = StartFrame(worker=worker, key=key, rows=rows, row_count=row_count)
        self._actor(key.execution_id).ask(ask)
        return await ask.answer

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
        """Take the outcomes of a frame."""
        ask = EndFrame(
            worker=worker, key=key, rows=rows, wants_next=wants_next, variables=variables or Variables(), logs=logs
        )
        self._actor(key.execution_id).ask(ask)
        return await ask.answer

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
        """Take the failure of a frame."""
        ask = EndFrame(worker=worker, key=key, failure=result, retryable=retryable, wants_next=wants_next, logs=logs)
        self._actor(key.execution_id).ask(ask)
        return await ask.answer

    async def heartbeat_frames(
        self,
        worker: Worker,
        keys: Sequence[FrameKey],
        *,
        lease_seconds: float = 0,
        progress: Mapping[FrameKey, JsonObject] | None = None,
    ) -> FrameBeats:
        """Keep frames; one execution in trouble does not keep the others from being renewed."""
        told = progress or {}
        asks = [BeatFrame(worker=worker, key=key, lease_seconds=lease_seconds, progress=told.get(key)) for key in keys]
        for key, ask in zip(keys, asks, strict=True):
            self._actor(key.execution_id).ask(ask)
        answers = await asyncio.gather(*(ask.answer for ask in asks), return_exceptions=True)
        answered = list(zip(keys, answers, strict=True))
        return FrameBeats(
            lost=frozenset(key for key, counts in answered if counts is False),
            unanswered=frozenset(key for key, counts in answered if isinstance(counts, BaseException)),
        )

    async def abandon_frame(
        self,
        key: FrameKey,
        *,
        expected_aggregate_version: int,
        lease_until: datetime,
        reclaimer: str,
        fence: Fence | None = None,
    ) -> int:
        """Give up a silent attempt at a frame."""
        ask = AbandonFrame(
            key=key,
            expected_aggregate_version=expected_aggregate_version,
            lease_until=lease_until,
            reclaimer=reclaimer,
            fence=fence,
        )
        self._actor(key.execution_id).ask(ask)
        return await ask.answer

    async def holders_of(self, execution_id: int, stage_id: str) -> Mapping[int, str]:
        """Who has frames of a stage; port `StageHolders`."""
        ask = LookAtStage(stage_id=stage_id)
        self._actor(execution_id).ask(ask)
        return await ask.answer

    async def pass_deadlines(
        self, execution_id: int, *, through: datetime, reclaimer: str = NOBODY_IN_PARTICULAR, fence: Fence | None = None
    ) -> DeadlinesPassed:
        """Record deadlines that have passed; port `Deadlines`."""
        ask = PassDeadlines(through=through, reclaimer=reclaimer, fence=fence)
        self._actor(execution_id).ask(ask)
        return await ask.answer

    async def steer(self, execution_id: int, action: SteerAction, *, by: str, reason: str) -> Steered:
        """Pause or resume an execution; port `Steering`."""
        ask = Steer(action=action, by=by, reason=reason)
        self._actor(execution_id).ask(ask)
        return await ask.answer

    def take(self, execution_id: int, *events: StoredEvent) -> None:
        """Events from the bus; ignored for executions of other owners."""
        if events and self._owns(shard_of(execution_id, self._shard_count)):
            actor = self._actor(execution_id)
            for event in events:
                actor.take(event)

    async def notice(self, execution_id: int, events: Sequence[StoredEvent], *, workload: bytes = b"") -> None:
        """What is being committed, told ahead of the bus; port `Notices`."""
        self._actor(execution_id).notice(events, workload)

    def known_version(self, execution_id: int) -> int:
        """Up to where an execution is known to stand in the log; 0 for one that is not."""
        actor = self._actors.get(execution_id)
        return actor.proven_version if actor is not None else 0

    def expect(self, execution_id: int, version: int, *, terminal: bool) -> None:
        """A head that moved; an execution that ended needs an actor only if it still has one."""
        if terminal and execution_id not in self._actors:
            return
        if self._owns(shard_of(execution_id, self._shard_count)):
            self._actor(execution_id).expect(version)

    def hints_for_claimable(self) -> Iterable[Hint]:
        """Wake-ups for everything that waits for a worker."""
        for actor in self._actors.values():
            yield from actor.hints_for_claimable()

    def states(self) -> Iterable[State]:
        """What has been folded of each execution that can go on."""
        return (actor.state for actor in self._actors.values() if not actor.quarantined)

    def quarantined(self) -> dict[str, str]:
        """Executions that were set aside, and why."""
        return {str(actor.execution_id): actor.quarantined for actor in self._actors.values() if actor.quarantined}

    def stuck(self) -> str | None:
        """What is wrong, if turns do not end; for the health of the process."""
        found = [str(actor.execution_id) for actor in self._actors.values() if actor.is_stuck]
        if not found:
            return None
        return f"turns of {len(found)} executions do not end: {', '.join(sorted(found)[:SHOWN_STUCK])}"

    def retry_quarantined(self) -> None:
        """Executions that were set aside get another chance now and then."""
        for actor in self._actors.values():
            actor.retry_quarantined()

    def let_go_of_ended(self) -> None:
        """Executions that are over need no actor."""
        for execution_id in [key for key, actor in self._actors.items() if actor.is_over]:
            del self._actors[execution_id]
        self._metrics.open_executions.set(len(self._actors))

    async def drop_shards(self, shards: Iterable[int]) -> None:
        """Shards went to somebody else: what is cached about them is worthless from now on."""
        lost = set(shards)
        gone = [actor for actor in self._actors.values() if actor.shard in lost]
        for actor in gone:
            del self._actors[actor.execution_id]
        await asyncio.gather(*(actor.stop() for actor in gone))

    async def stop(self) -> None:
        """Stop every actor."""
        actors, self._actors = self._actors, {}
        await asyncio.gather(*(actor.stop() for actor in actors.values()))

    def _actor(self, execution_id: int) -> Actor:
        actor = self._actors.get(execution_id)
        if actor is None:
            shard = shard_of(execution_id, self._shard_count)
            if not self._owns(shard):
                raise NotOwner(shard=shard, address=self._owner_address(shard))
            actor = self._actors[execution_id] = self._make_actor(execution_id, shard)
        return actor


def _frame_claim(slot: StageSlot, answer: FrameClaim | BaseException) -> FrameClaim:
    if isinstance(answer, NoetlError):
        return FrameClaim(slot=slot, refusal=UNANSWERED if answer.retryable else answer.code)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _outcome(key: CommandKey, answer: ClaimOutcome | BaseException) -> ClaimOutcome:
    if isinstance(answer, NoetlError):
        return ClaimOutcome(key=key, refusal=UNANSWERED if answer.retryable else answer.code)
    if isinstance(answer, BaseException):
        raise answer
    return answer
