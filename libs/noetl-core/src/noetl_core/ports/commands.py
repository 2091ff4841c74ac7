"""Work as workers and the planner exchange it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Protocol

from noetl_core.append import Fence
from noetl_core.canonical import JsonObject
from noetl_core.children.state import ParkedCall
from noetl_core.payloads import PayloadRef
from noetl_core.placement import ANYWHERE, Locality
from noetl_core.stages.rows import FrameRows
from noetl_core.streams.state import Chunk, Place
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Which worker process asks."""

    worker_id: str
    pool: str = "default"
    locator: str = ""
    locality: Locality = ANYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandKey:
    """Names one attempt of one command."""

    execution_id: int
    command_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """Variables of an execution: whole values by name, large ones by reference."""

    values: Mapping[str, Any] = field(default_factory=dict)
    refs: Mapping[str, PayloadRef] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values or self.refs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopItem:
    """The item of a loop that a command runs: its value, or the stored collection in which it stands."""

    loop_id: str
    index: int
    total: int
    value: Any = None
    collection: PayloadRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedCommand:
    """Everything a worker needs to run one command."""

    key: CommandKey
    tenant_id: str
    organization_id: str
    catalog_id: str
    step: str
    activation: int
    attempt: int
    lease_seconds: float
    idempotency_key: str
    issued_at: datetime
    lease_left_seconds: float | None = None
    """Of a frame: less than its lease if it is granted again; None if nobody tells."""
    workload: PayloadRef | None = None
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Result of each step that ran before, as {status, reference, parent_ref, context}."""
    variables: Variables = field(default_factory=Variables)
    """What was set since the start, over the workload."""
    cause_step: str = ""
    trace: str = ""
    evaluation: Mapping[str, Any] | None = None
    """Of an internal command: the control expressions to evaluate for the planner, instead of running a step."""
    pool: str = "default"
    pipeline: bool = False
    """Whether it was issued as a pipeline: its facts are told under that node."""
    parked: ParkedCall | None = None
    """Where its pipeline goes on; None for one that begins."""
    item: LoopItem | None = None
    chunk: Chunk | None = None
    """What it takes, if a stream led here."""
    streamed: Place = field(default_factory=Place)
    """Up to where earlier attempts have told their chunks."""
    frame: FrameRows | None = None
    """The rows that it runs, if it is a frame in the place of a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldChunk:
    """A chunk of the rows of a running call, stored before it is told."""

    task: str
    call: int
    """Which of the streaming calls of the command, from 0."""
    chunk_index: int
    row_count: int
    has_more: bool
    rows: PayloadRef


UNANSWERED = "claim.unanswered"
"""Refusal of a claim that nobody could judge: ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeats:
    """What became of a round of heartbeats: all others were renewed."""

    lost: frozenset[CommandKey] = frozenset()
    """They no longer count."""
    unanswered: frozenset[CommandKey] = frozenset()
    """Nobody could say; their leases run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOutcome:
    """The command, or why it was not granted."""

    key: CommandKey
    command: GrantedCommand | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a completed command leads to for its worker."""

    stream_version: int
    next: GrantedCommand | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandonment:
    """What an abandoned attempt leads to; `next_attempt` 0 means that none follows."""

    stream_version: int
    next_attempt: int


class Commands(Protocol):
    """Hands commands to workers and takes their results."""

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        """Claim commands; safe to repeat by the same worker."""
        ...

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
        """Deliver a result, and what was printed; safe to repeat. Raises `LeaseLost` if it does not count any more."""
        ...

    async def tell_chunk(self, worker: Worker, key: CommandKey, chunk: ToldChunk) -> bool:
        """Tell a chunk of a command under way; safe to repeat. False: too many wait, tell it again later.

        Raises `LeaseLost` if the command does not count any more.
        """
        ...

    async def heartbeat(
        self, worker: Worker, keys: Sequence[CommandKey], *, progress: Mapping[CommandKey, JsonObject] | None = None
    ) -> Heartbeats:
        """Keep claims alive, as many as can be, and tell how far some of them are."""
        ...

    async def park(self, worker: Worker, key: CommandKey, call: ParkedCall, *, timeout_seconds: float) -> int:
        """Leave a command without a worker until its call is answered; returns the version of the event.

        Safe to repeat. Raises `LeaseLost` when the command does not count any more.
        """
        ...

    async def abandon(
        self,
        key: CommandKey,
        *,
        expected_aggregate_version: int,
        lease_until: datetime,
        reclaimer: str,
        fence: Fence | None = None,
    ) -> Abandonment:
        """Give up a silent attempt; refused when its worker was heard of since, or the asker's own lease is over."""
        ...


class WaitingRoom(Protocol):
    """Where workers wait for commands that nobody has issued yet."""

    async def wait_for_commands(
        self, worker: Worker, *, room: int, held: Collection[CommandKey], seconds: float
    ) -> tuple[GrantedCommand, ...]:
        """Wait until something is claimed for this worker; whoever waits again ends its earlier wait.

        Without `room` it waits no longer. What it was given and does not hold is given again.
        """
        ...
