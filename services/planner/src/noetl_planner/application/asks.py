"""What reaches an execution's actor besides events: each ask carries the future that answers it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from noetl_core.append import Fence
from noetl_core.children.state import ParkedCall
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import Abandonment, ClaimOutcome, Completion, ToldChunk, Variables, Worker
from noetl_core.ports.deadlines import DeadlinesPassed
from noetl_core.ports.frames import CommittedRows, FrameClaim, FrameCommit, FrameKey, StageSlot
from noetl_core.ports.steering import SteerAction, Steered


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claim:
    """A worker wants a command."""

    worker: Worker
    command_id: str
    answer: asyncio.Future[ClaimOutcome] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Complete:
    """A worker delivers a result."""

    worker: Worker
    command_id: str
    result: Mapping[str, Any]
    wants_next: bool
    variables: Variables = field(default_factory=Variables)
    logs: PayloadRef | None = None
    answer: asyncio.Future[Completion] = field(default_factory=_future)

    def answer_alone(self, stream_version: int) -> Completion:
        """The answer for a result that was appended without what follows from it."""
        return Completion(stream_version=stream_version)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TellChunk:
    """A worker has stored a chunk of a running call; the answer says whether there was room for it."""

    worker: Worker
    command_id: str
    chunk: ToldChunk
    answer: asyncio.Future[bool] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heartbeat:
    """A worker is alive and still runs a command; the answer says whether the claim counts."""

    worker: Worker
    command_id: str
    progress: Mapping[str, Any] | None = None
    answer: asyncio.Future[bool] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Park:
    """A worker leaves a command until its call is answered; the answer is the version at which it did."""

    worker: Worker
    command_id: str
    call: ParkedCall
    timeout_seconds: float
    answer: asyncio.Future[int] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Abandon:
    """Somebody saw a command whose worker is silent."""

    command_id: str
    expected_aggregate_version: int
    lease_until: datetime
    reclaimer: str
    fence: Fence | None = None
    answer: asyncio.Future[Abandonment] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassDeadlines:
    """Somebody saw that deadlines up to a time have passed."""

    through: datetime
    reclaimer: str
    fence: Fence | None = None
    answer: asyncio.Future[DeadlinesPassed] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steer:
    """Somebody pauses or resumes the execution."""

    action: SteerAction
    by: str
    reason: str
    answer: asyncio.Future[Steered] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClaimFrame:
    """A worker wants the next frame of a slot."""

    worker: Worker
    slot: StageSlot
    answer: asyncio.Future[FrameClaim] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StartFrame:
    """A worker has claimed rows for a frame; the answer is the index of the first of them."""

    worker: Worker
    key: FrameKey
    rows: PayloadRef
    row_count: int
    answer: asyncio.Future[int] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EndFrame:
    """A worker delivers the outcomes of a frame, or says with `failure` that there are none."""

    worker: Worker
    key: FrameKey
    wants_next: bool
    rows: CommittedRows | None = None
    failure: Mapping[str, Any] = field(default_factory=dict)
    retryable: bool = False
    variables: Variables = field(default_factory=Variables)
    logs: PayloadRef | None = None
    answer: asyncio.Future[FrameCommit] = field(default_factory=_future)

    def answer_alone(self, stream_version: int) -> FrameCommit:
        """The answer for an end that was appended without what follows from it."""
        return FrameCommit(stream_version=stream_version)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BeatFrame:
    """A worker is alive and still runs a frame; the answer says whether that counts."""

    worker: Worker
    key: FrameKey
    lease_seconds: float = 0
    progress: Mapping[str, Any] | None = None
    answer: asyncio.Future[bool] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AbandonFrame:
    """Somebody saw a frame whose worker is silent; the answer is the version at which it was given up."""

    key: FrameKey
    expected_aggregate_version: int
    lease_until: datetime
    reclaimer: str
    fence: Fence | None = None
    answer: asyncio.Future[int] = field(default_factory=_future)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookAtStage:
    """Somebody wants to know who has frames of a stage; the answer is by slot."""

    stage_id: str
    answer: asyncio.Future[Mapping[int, str]] = field(default_factory=_future)


FrameAsk = ClaimFrame | StartFrame | EndFrame | BeatFrame | AbandonFrame | LookAtStage
Ask = Claim | Complete | TellChunk | Heartbeat | Park | Abandon | PassDeadlines | Steer | FrameAsk
GUARDED = (Abandon, AbandonFrame, PassDeadlines)
"""Their events may be refused by PostgreSQL's clock or by the asker's fence, so each is an append of its own."""


def next_asks(waiting: deque[Ask], *, limit: int) -> list[Ask]:
    """Take off what one append answers: what a guard may refuse goes alone."""
    asks: list[Ask] = []
    while waiting and len(asks) < limit:
        ask = waiting[0]
        if isinstance(ask, GUARDED) and asks:
            break
        asks.append(waiting.popleft())
        if isinstance(ask, GUARDED):
            break
    return asks


def fence_of(asks: Sequence[Ask]) -> Fence | None:
    """The lease that must last for what is asked to be done; such an ask is alone in its turn."""
    return next((ask.fence for ask in asks if isinstance(ask, GUARDED)), None)


def refuse(ask: Ask, error: BaseException) -> None:
    """Answer an ask with an error, unless its caller has gone."""
    if not ask.answer.done():
        ask.answer.set_exception(error)
