"""How often a frame is told of, beside how long its lease is."""

from __future__ import annotations

from typing import Any

import pytest
from noetl_core.playbook.loop_model import FramePolicy
from noetl_core.stages.policy import AMOUNTS, COUNTS, FrameBounds, InvalidFramePolicy, bounds_of


def bounds(**written: Any) -> FrameBounds:
    policy = FramePolicy(**written)
    return bounds_of(policy, {name: getattr(policy, name) for name in (*COUNTS, *AMOUNTS)})


def test_a_heartbeat_may_take_half_of_the_lease() -> None:
    assert bounds(lease_seconds=10.0, heartbeat_seconds=5.0).heartbeat_seconds == 5.0


@pytest.mark.parametrize("heartbeat", [5.5, 9.5, 10.0, 61.0])
def test_a_heartbeat_that_would_come_late_is_refused_with_both_values(heartbeat: float) -> None:
    with pytest.raises(InvalidFramePolicy, match=rf"lease of 10 s, not {heartbeat:g}"):
        bounds(lease_seconds=10.0, heartbeat_seconds=heartbeat)


@pytest.mark.parametrize("lease", [3.0, 20.0, 40.0])
def test_a_short_lease_has_heartbeats_of_its_own(lease: float) -> None:
    assert bounds(lease_seconds=lease).heartbeat_seconds == lease / 4
