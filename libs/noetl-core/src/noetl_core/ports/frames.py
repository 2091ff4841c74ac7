"""Frames as workers and the planner exchange them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Final, Protocol

from noetl_core.append import Fence
from noetl_core.canonical import JsonObject, encode
from noetl_core.errors import InvalidInput
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import GrantedCommand, Variables, Worker
from noetl_core.stages.rows import FrameRows
from noetl_core.values import dataclass

DURABLE: Final = ("uri", "ref", "locator", "tier3_uri")
"""What a reference calls the place that is trusted to exist."""
MAX_METRICS_BYTES: Final = 16 * 1024
"""They stand in an event, and are as many as the tasks that a playbook writes."""
ANY_SLOT: Final = -1
"""Whichever slot of the stage is free."""
MAX_CLAIM_ID: Final = 300
"""It stands in an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSlot:
    """A place in a stage at which one frame after the other runs."""

    execution_id: int
    stage_id: str
    slot: int = ANY_SLOT
    lease_seconds: float = 0
    """How long the claim is to last without a heartbeat; 0 is as long as the stage says."""
    max_rows: int = 0
    """Rows that the worker takes at most, if that is less than the stage says."""
    claim_id: str = ""
    """How the worker calls a claim of whichever slot is free: repeated, it gives the frame that it gave before."""

    def __post_init__(self) -> None:
        if len(self.claim_id) > MAX_CLAIM_ID:
            raise InvalidInput(f"a claim is called by {MAX_CLAIM_ID} characters at most, not {len(self.claim_id)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameKey:
    """Names one attempt at one frame."""

    execution_id: int
    frame_id: str
    attempt: int
    """0 is the one that the worker holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedFrame:
    """Everything a worker needs to run one frame: what a command of the step would have, and the rows."""

    key: FrameKey
    step: GrantedCommand
    rows: FrameRows
    lease_left_seconds: float | None = None
    """For how long its worker has it without a heartbeat; None if the planner does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameClaim:
    """The frame, or why there is none."""

    slot: StageSlot
    frame: GrantedFrame | None = None
    refusal: str = ""


def has_only_hint(value: object) -> bool:
    """Whether something in it refers to a copy in the memory of a node (`ipc`) and to nothing that lasts."""
    if isinstance(value, Mapping):
        if value.get("ipc") and not any(value.get(name) for name in DURABLE):
            return True
        return any(has_only_hint(one) for one in value.values())
    return isinstance(value, list | tuple) and any(has_only_hint(one) for one in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRows:
    """What became of the rows of a frame, up to before `stop`; the outcomes themselves are stored."""

    result: Mapping[str, Any]
    stop: int
    success: int
    failed: int
    breaks: int = 0
    first_error: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    """How rows ended, and what tasks, rendering and tools took."""

    def __post_init__(self) -> None:
        if min(self.success, self.failed, self.breaks) < 0 or self.breaks > self.success:
            raise InvalidInput("a frame is committed with counts of its rows")
        if not self.result.get("reference") and self.success + self.failed > 0:
            raise InvalidInput("a frame is committed with a reference to where its outcomes are stored")
        if self.metrics is not None and len(encode(dict(self.metrics))) > MAX_METRICS_BYTES:
            raise InvalidInput(f"metrics of a frame have at most {MAX_METRICS_BYTES} bytes")
        if has_only_hint(self.result):
            raise InvalidInput("a hint of where a copy is nearby says nothing about where the outcomes are stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCommit:
    """What a commit leads to for its worker: the next frame of the slot, already claimed, if there is one."""

    stream_version: int
    next: GrantedFrame | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameBeats:
    """What became of a round of heartbeats: all others were renewed."""

    lost: frozenset[FrameKey] = field(default_factory=frozenset)
    unanswered: frozenset[FrameKey] = field(default_factory=frozenset)
    token: str = field(default="", repr=False)
    """In place of the caller's, if that is a token of a stage and past half of its life."""


class StageHolders(Protocol):
    """Knows who has frames."""

    async def holders_of(self, execution_id: int, stage_id: str) -> Mapping[int, str]:
        """The worker that has the frame at each slot of a stage; nobody, if it is over or not known."""
        ...


class Frames(Protocol):
    """Hands frames to workers and takes what became of them."""

    async def claim_frames(self, worker: Worker, slots: Sequence[StageSlot]) -> tuple[FrameClaim, ...]:
        """Claim the next frame of each slot; safe to repeat by the same worker, if it names slots or its claims."""
        ...

    async def start_frame(self, worker: Worker, key: FrameKey, rows: PayloadRef, *, row_count: int) -> int:
        """Tell which rows a frame has claimed itself, before its claim is committed; returns the index of the first.

        Safe to repeat. Raises as `commit_frame` does, and `FrameHasRows` if others were told before.
        """
        ...

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
        """Deliver the outcomes of a frame; safe to repeat. Raises `LeaseLost` and `FrameAlreadyTerminal`."""
        ...

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
        """The attempt failed as a whole; safe to repeat. Raises as `commit_frame` does."""
        ...

    async def heartbeat_frames(
        self,
        worker: Worker,
        keys: Sequence[FrameKey],
        *,
        lease_seconds: float = 0,
        progress: Mapping[FrameKey, JsonObject] | None = None,
    ) -> FrameBeats:
        """Keep frames, as many as can be, for so long or for as long as their stages say."""
        ...

    async def abandon_frame(
        self,
        key: FrameKey,
        *,
        expected_aggregate_version: int,
        lease_until: datetime,
        reclaimer: str,
        fence: Fence | None = None,
    ) -> int:
        """Give up a silent attempt; returns the version. Refused as `Commands.abandon` is."""
        ...
