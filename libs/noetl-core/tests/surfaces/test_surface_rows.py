"""Rows of the six surfaces: the same whether a history is folded at once or bit by bit, pruned and stored between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.canonical import decode, encode
from noetl_core.errors import Corrupt
from noetl_core.executions.events import ExecutionCancelled, StepEntered, StepExited, WorkflowInitialized
from noetl_core.fold import empty, prune
from noetl_core.recorded import Recorded
from noetl_core.state_json import decode_state, encode_state
from noetl_core.steering.events import ExecutionPaused, ExecutionResumed
from noetl_core.surfaces.shapes import SHAPES, Surface, check_row, key_of
from noetl_core.surfaces.surface_fold import SurfaceFold, touched_objects
from noetl_testkit.frame_histories import drawn_frame_history
from noetl_testkit.histories import (
    EXECUTION,
    History,
    choices,
    claimed,
    completed,
    done,
    drawn_history,
    heartbeat,
    initialized,
    issued,
    started,
    two_steps,
)

Rows = dict[Surface, dict[str, Any]]


def rows_at_once(events: Sequence[Recorded]) -> Rows:
    folding = SurfaceFold(empty(EXECUTION))
    folding.add_all(events)
    return {surface: dict(rows) for surface, rows in folding.changed().items()}


def rows_bit_by_bit(events: Sequence[Recorded], choose: random.Random) -> Rows:
    """As a projector does it: what it keeps between batches is a pruned state, in JSON, and rows, in JSON."""
    state, stored = empty(EXECUTION), {surface: {} for surface in Surface}  # type: Any, Rows
    left = list(events)
    while left:
        size = choose.randint(1, 4)
        batch, left = left[:size], left[size:]
        objects = {key: stored[Surface.BUSINESS_OBJECTS].get(key) for key in touched_objects(batch)}
        folding = SurfaceFold(state, {Surface.BUSINESS_OBJECTS: {key: row for key, row in objects.items() if row}})
        folding.add_all(batch)
        for surface, rows in folding.changed().items():
            stored[surface].update({key: decode(encode(dict(row))) for key, row in rows.items()})
        state = decode_state(encode_state(prune(folding.state)))
    return stored


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30))
def test_rows_do_not_depend_on_where_a_history_is_cut(seed: int, moves: int) -> None:
    events = drawn_history(choices(seed), moves=moves, ends=seed % 2 == 0).recorded

    assert rows_bit_by_bit(events, choices(seed)) == rows_at_once(events)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_rows_of_frames_do_not_depend_on_where_a_history_is_cut(seed: int) -> None:
    events = drawn_frame_history(choices(seed)).recorded

    at_once = rows_at_once(events)

    assert rows_bit_by_bit(events, choices(seed)) == at_once
    for surface, rows in at_once.items():
        for key, row in rows.items():
            check_row(surface, row)
            assert key_of(surface, row) == key


def test_every_row_has_the_shape_of_its_surface_and_can_be_stored() -> None:
    for seed in range(20):
        for surface, rows in rows_at_once(drawn_history(choices(seed), moves=40).recorded).items():
            for row in rows.values():
                check_row(surface, row)
                assert decode(encode(row)) == row


def test_two_steps_give_an_execution_and_two_commands_that_have_ended() -> None:
    rows = rows_at_once(two_steps(History()).recorded)

    assert {surface.value: len(found) for surface, found in rows.items()} == {
        "execution": 1,
        "stages": 0,
        "frames": 0,
        "commands": 2,
        "business_objects": 0,
        "loops": 0,
    }
    assert {(row["step"], row["status"]) for row in rows[Surface.COMMANDS].values()} == {
        ("first", "completed"),
        ("second", "completed"),
    }
    (execution,) = rows[Surface.EXECUTION].values()
    assert (execution["status"], execution["stream_version"]) == ("COMPLETED", 18)
    assert "commands" not in execution["state"]


def test_what_comes_after_the_end_of_a_command_changes_nothing() -> None:
    history = two_steps(History())
    first = issued(history, "first")
    before = rows_at_once(history.recorded)
    late = History().add(*[one.content for one in history.recorded[:-1]], heartbeat(first), claimed(first))

    assert rows_at_once(late.recorded)[Surface.COMMANDS][first.command_id]["status"] == "completed"
    assert before[Surface.COMMANDS].keys() == rows_at_once(late.recorded)[Surface.COMMANDS].keys()


def test_nobody_waits_for_commands_of_an_execution_that_is_paused_or_has_ended() -> None:
    history = History()
    command = issued(history, "a")
    history.add(initialized(), WorkflowInitialized(entry_step="a"), StepEntered(step="a", activation=1), command)
    history.add(claimed(command), started(command))

    def lease() -> Any:
        return rows_at_once(history.recorded)[Surface.COMMANDS][command.command_id].get("lease_until")

    first = lease()
    history.add(ExecutionPaused(reason="", paused_by="ada"))
    paused = lease()
    history.add(ExecutionResumed(reason="", resumed_by="ada"))
    resumed = lease()
    history.add(ExecutionCancelled(reason="", cancelled_by="ada"))

    assert first == resumed is not None
    assert paused is lease() is None


def test_frames_of_a_stage_that_is_closed_without_them_are_stopped() -> None:
    seeds = (rows_at_once(drawn_frame_history(choices(seed)).recorded) for seed in range(10))
    stopped = [row for rows in seeds for row in rows[Surface.FRAMES].values() if row["status"] == "stopped"]

    assert stopped
    assert all("lease_until" not in row and "terminal_event_id" in row for row in stopped)


@pytest.mark.parametrize(
    ("named", "told"),
    [(str(2**62), str(2**62)), (str(2**63 - 1), str(2**63 - 1)), (str(2**63), None), ("@3", None), ("", None)],
)
def test_a_stage_is_opened_for_an_event_and_not_for_what_is_none(named: str, told: str | None) -> None:
    """An api of before stores the place of a draft as it came."""
    history = drawn_frame_history(choices(1), moves=0)
    opened = next(one for one in history.recorded if one.envelope.event_type == "stage.opened")
    as_named = replace(opened, envelope=replace(opened.envelope, parent_event_id=named))

    (row,) = rows_at_once([history.recorded[0], as_named])[Surface.STAGES].values()

    check_row(Surface.STAGES, row)
    assert row.get("parent_event_id") == told


def test_a_step_that_ends_stops_what_is_open_of_it() -> None:
    history = History()
    command = issued(history, "a")
    history.add(initialized(), StepEntered(step="a", activation=1), command, claimed(command))
    history.add(StepExited(step="a", activation=1, status="error"), done(command), completed(command))

    (row,) = rows_at_once(history.recorded)[Surface.COMMANDS].values()

    assert (row["status"], row["terminal_event_id"]) == ("stopped", str(history.recorded[4].envelope.event_id))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": 1}, "unknown fields: surprise"),
        ({"activation": None}, "'activation'"),
        ({"activation": "1"}, "'activation' of a row of commands is str, not integer"),
        ({"internal": 0}, "'internal' of a row of commands is int, not boolean"),
        ({"pool": ""}, "'pool'"),
    ],
)
def test_a_row_of_another_shape_is_refused(change: dict[str, Any], message: str) -> None:
    row = next(iter(rows_at_once(two_steps(History()).recorded)[Surface.COMMANDS].values()))

    with pytest.raises(Corrupt, match=message):
        check_row(Surface.COMMANDS, {**row, **change})
    with pytest.raises(Corrupt, match="lacks status"):
        check_row(Surface.COMMANDS, {name: value for name, value in row.items() if name != "status"})


def test_identities_are_fields_that_every_row_has() -> None:
    assert all(shape.required.keys() >= set(shape.identity) for shape in SHAPES.values())
    assert all(not shape.required.keys() & shape.optional.keys() for shape in SHAPES.values())
