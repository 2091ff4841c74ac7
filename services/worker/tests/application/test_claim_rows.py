"""Rows of a cursor: an answer that is lost makes a frame begin anew, and does not end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonValue
from noetl_core.errors import FrameHasRows, InvalidInput, NoetlError, Unavailable
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.model import Cursor
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_core.ports.frames import FrameClaim, FrameKey, GrantedFrame, StageSlot
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.rows import FrameRows
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.claim_rows import ClaimRows
from noetl_worker.application.frame_work import frame_key
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.tool_call import ToolCall

FRAME = FrameRows(
    stage_id="1-s", loop_id="l", index=0, slot=0, start=0, stop=0, total=0, bounds=FrameBounds(max_rows=2), claims=True
)
COMMAND = GrantedCommand(
    key=CommandKey(execution_id=1, command_id="1-s-0/1"),
    tenant_id="t",
    organization_id="o",
    catalog_id="1",
    step="s",
    activation=1,
    attempt=1,
    lease_seconds=120,
    idempotency_key="1/s/1",
    issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    frame=FRAME,
)


class Table:
    """A tool whose claims give other rows each time."""

    def __init__(self, *claims: list[JsonValue]) -> None:
        self.claims = list(claims)

    async def run(self, call: ToolCall) -> Outcome:
        assert call.chunks is not None
        await call.chunks.put(self.claims.pop(0))
        return Outcome()


class Planner:
    """Appends which rows a frame has; its first answers are lost, or it refuses."""

    def __init__(self, *, lost: int = 0, refusal: NoetlError | None = None, forgets: bool = False) -> None:
        self.lost = lost
        self.forgets = forgets
        self.refusal = refusal
        self.told: PayloadRef | None = None

    async def start_frame(self, worker: Worker, key: FrameKey, rows: PayloadRef, *, row_count: int) -> int:
        if self.refusal is not None:
            raise self.refusal
        if self.told not in (None, rows):
            raise FrameHasRows(key.frame_id)
        self.told = rows
        if self.lost:
            self.lost -= 1
            raise Unavailable("nobody answers")
        return 7

    async def claim_frames(self, worker: Worker, slots: Sequence[StageSlot]) -> tuple[FrameClaim, ...]:
        """Whoever holds a frame gets it once more, with its rows if they are known."""
        if self.told is None or self.forgets:
            return (FrameClaim(slot=slots[0], refusal="frame.held"),)
        rows = replace(FRAME, start=7, stop=9, claims=False, collection=self.told, collection_at=7)
        return (FrameClaim(slot=slots[0], frame=GrantedFrame(key=frame_key(COMMAND.key), step=COMMAND, rows=rows)),)


async def claimed(claim: ClaimRows) -> tuple[int, Sequence[JsonValue]] | FrameRows | Outcome:
    return await claim(
        COMMAND,
        frame=FRAME,
        cursor=Cursor(kind="postgres", auth=None, claim="SELECT 1"),
        names={},
        keychain={},
        place=ResultPlace(tenant_id="t", organization_id="o", execution_id=1, step="s"),
    )


def claim_rows(planner: Planner, *claims: list[JsonValue]) -> ClaimRows:
    persist = PersistBeforeEmit(InMemoryPayloadStore(), ArrowTables())
    return ClaimRows(Table(*claims), persist=persist, tell=planner, worker=Worker(worker_id="w"))


async def test_rows_that_were_told_without_an_answer_are_those_of_the_same_attempt() -> None:
    planner = Planner(lost=1)
    claim = claim_rows(planner, [1, 2], [3])
    with pytest.raises(Unavailable):
        await claimed(claim)

    known = await claimed(claim)
    assert isinstance(known, FrameRows)
    assert (known.start, known.stop, known.collection, known.claims) == (7, 9, planner.told, False)


async def test_other_rows_than_those_told_before_are_left_to_the_next_attempt() -> None:
    claim = claim_rows(Planner(lost=1, forgets=True), [1, 2], [3])
    with pytest.raises(Unavailable):
        await claimed(claim)

    again = await claimed(claim)
    assert isinstance(again, Outcome) and again.error is not None
    assert (again.error.code, again.error.retryable) == ("frame.has_rows", True)


async def test_the_same_rows_are_told_again_after_a_lost_answer() -> None:
    claim = claim_rows(Planner(lost=1), [1, 2], [1, 2])
    with pytest.raises(Unavailable):
        await claimed(claim)
    assert await claimed(claim) == (7, [1, 2])


async def test_rows_that_are_refused_for_themselves_end_the_frame() -> None:
    refused = await claimed(claim_rows(Planner(refusal=InvalidInput("no rows")), [1]))
    assert isinstance(refused, Outcome) and refused.error is not None
    assert (refused.error.code, refused.error.retryable) == ("request.invalid", False)
