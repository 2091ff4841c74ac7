"""Claims and frames come out of their messages as they went in."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from noetl.frame.v1 import frame_pb2 as pb
from noetl_contracts.mapping import frames as mapping
from noetl_core.errors import InvalidInput
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_core.ports.frames import FrameClaim, FrameKey, GrantedFrame, StageSlot
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.rows import FrameRows

SLOT = StageSlot(execution_id=7, stage_id="7-ab", lease_seconds=9, max_rows=2, claim_id="c-1/0")


def granted(lease_left_seconds: float | None) -> GrantedFrame:
    step = GrantedCommand(
        key=CommandKey(execution_id=7, command_id="7-ab-0/1"),
        tenant_id="t",
        organization_id="o",
        catalog_id="c",
        step="each",
        activation=1,
        attempt=1,
        lease_seconds=120,
        idempotency_key="k",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    rows = FrameRows(
        stage_id="7-ab", loop_id="7-l", index=0, slot=1, start=0, stop=2, total=5, bounds=FrameBounds(), values=(1, 2)
    )
    key = FrameKey(execution_id=7, frame_id="7-ab-0", attempt=1)
    return GrantedFrame(key=key, step=step, rows=rows, lease_left_seconds=lease_left_seconds)


@pytest.mark.parametrize("lease_left_seconds", [None, 0.0, 8.5])
def test_what_a_claim_gave_comes_out_of_its_message(lease_left_seconds: float | None) -> None:
    claim = FrameClaim(slot=SLOT, frame=granted(lease_left_seconds))

    assert mapping.claim(mapping.claim_message(claim)) == claim


def test_a_claim_is_not_called_by_a_text_of_any_length() -> None:
    with pytest.raises(InvalidInput):
        mapping.slot(pb.StageSlot(stage_id="7-ab", claim_id="c" * 301))
