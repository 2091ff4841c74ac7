"""Differences between two points, as people see them."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from noetl_cli.replay.commands import replay
from noetl_cli.replay.shown import difference_lines
from noetl_contracts.clients import ReplayedState
from noetl_core.replay.differences import differences
from noetl_core.surfaces.shapes import Surface
from noetl_testkit.histories import NOON


def state(attributes: dict[str, Any]) -> ReplayedState:
    return ReplayedState(
        execution_id=7,
        tenant_id="default",
        organization_id="default",
        stream_version=2,
        event_id="1",
        reached_at=NOON,
        event_checksum="e",
        head_version=2,
        format=1,
        upcasters="u",
        snapshot_version=0,
        surfaces={},
        row_counts={},
        checksum="c",
        payload_root="p",
        payload_count=0,
        rows={Surface.BUSINESS_OBJECTS: {"order/7": {"status": "open", "attributes": attributes}}},
    )


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ({}, {"paid": None}, "(absent) -> null"),
        ({"paid": None}, {}, "null -> (absent)"),
        ({"paid": True}, {"paid": 1}, "true -> 1"),
        ({"paid": "null"}, {"paid": None}, '"null" -> null'),
        ({"paid": "yes"}, {"paid": "1"}, 'yes -> "1"'),
    ],
)
def test_values_that_differ_look_different(old: dict[str, Any], new: dict[str, Any], shown: str) -> None:
    before, after = state(old), state(new)

    *_, line = difference_lines(before, after, differences(before.rows, after.rows))

    assert line == f"    attributes.paid: {shown}"


def test_differences_in_no_rows_cannot_be_asked_for() -> None:
    refused = CliRunner().invoke(replay, ["diff", "7", "1", "--surface", "none"])

    assert refused.exit_code == 2
    assert "--surface" in refused.output
