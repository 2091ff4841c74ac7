"""How often a frame is told of, beside how long its lease is."""

from __future__ import annotations

from typing import Any

import pytest
from noetl_core.playbook.loop_model import FramePolicy
from noetl_core.stages.policy import AMOUNTS, COUNTS, FrameBounds, InvalidFramePolicy, bounds_of


def bounds(**written: Any) -> FrameBounds:
    policy = FramePolicy(**written)
    return bounds_of(policy, {name: getattr(policy, name) for name in (*COUNTS, *AMOUNTS)})


def test_what_is_not_written_has_the_defaults_of_the_language() -> None:
    assert bounds().to_json() == {
        "max_rows": 1,
        "max_bytes": 67_108_864,
        "max_seconds": 30.0,
        "lease_seconds": 120.0,
        "heartbeat_seconds": 30.0,
        "process": "row",
        "row_concurrency": 1,
        "retry_mode": "whole_frame",
        "max_attempts": 3,
        "on_failure": "fail",
    }


def test_a_heartbeat_may_take_half_of_the_lease() -> None:
    assert bounds(lease_seconds=10.0, heartbeat_seconds=5.0).heartbeat_seconds == 5.0


@pytest.mark.parametrize("heartbeat", [5.5, 9.5, 10.0, 61.0])
def test_a_heartbeat_that_would_come_late_is_refused_with_both_values(heartbeat: float) -> None:
    with pytest.raises(InvalidFramePolicy, match=rf"lease of 10 s, not {heartbeat:g}"):
        bounds(lease_seconds=10.0, heartbeat_seconds=heartbeat)


@pytest.mark.parametrize("lease", [3.0, 20.0, 40.0])
def test_a_short_lease_has_heartbeats_of_its_own(lease: float) -> None:
    assert bounds(lease_seconds=lease).heartbeat_seconds == lease / 4
