"""Snapshots: a replay that begins with one says what every other replay says, or it does not begin with it."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_core.errors import Corrupt
from noetl_core.replay.history import Replay, Replayed
from noetl_core.replay.snapshots import Rules, Snapshot, open_snapshot, positions_to_keep, take_snapshot
from noetl_core.values import replace
from noetl_testkit.histories import EXECUTION, History, choices, drawn_history
from noetl_testkit.telling_histories import telling_history

RULES = Rules(code_version="1.0+abc")


def replayed(history: History, *, through: int | None = None) -> Replayed:
    replay = Replay(history.execution_id)
    replay.take(history.stored[:through])
    return replay.result()


def taken(seed: int = 3, through: int = 20) -> tuple[Snapshot, list[bytes]]:
    history = telling_history(choices(seed))
    return take_snapshot(replayed(history, through=through), code_version=RULES.code_version)


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_a_replay_from_a_snapshot_is_the_replay_from_the_start(seed: int, share: float) -> None:
    choose = choices(seed)
    history = choose.choice((telling_history, drawn_history))(choose)
    position = max(int(len(history.stored) * share), 1)
    snapshot, parts = take_snapshot(replayed(history, through=position), code_version=RULES.code_version)

    replay = Replay(EXECUTION, seed=open_snapshot(snapshot, parts, execution_id=EXECUTION, rules=RULES))
    replay.take(history.stored[position:])

    whole, went_on = replayed(history), replay.result()
    assert snapshot.position == position
    assert went_on.rows == whole.rows
    assert went_on.checksums() == whole.checksums()
    assert went_on.payloads.to_json() == whole.payloads.to_json()
    assert (went_on.checksum, went_on.reached_at) == (whole.checksum, whole.reached_at)


def test_a_snapshot_of_a_replay_that_began_with_one_is_the_snapshot_of_the_whole() -> None:
    history = telling_history(choices(5))
    first, parts = take_snapshot(replayed(history, through=15), code_version=RULES.code_version)
    replay = Replay(EXECUTION, seed=open_snapshot(first, parts, execution_id=EXECUTION, rules=RULES))
    replay.take(history.stored[15:30])

    again = take_snapshot(replay.result(), code_version=RULES.code_version)

    assert again == take_snapshot(replayed(history, through=30), code_version=RULES.code_version)


def test_a_large_snapshot_has_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl_core.replay.snapshots.PART_BYTES", 1_000)
    snapshot, parts = taken()

    assert snapshot.parts == len(parts) > 3
    assert open_snapshot(snapshot, parts, execution_id=EXECUTION, rules=RULES).state.stream_version == 20
    with pytest.raises(Corrupt):
        open_snapshot(snapshot, [*parts[1:], parts[0]], execution_id=EXECUTION, rules=RULES)
    with pytest.raises(Corrupt):
        open_snapshot(snapshot, parts[:-1], execution_id=EXECUTION, rules=RULES)


@pytest.mark.parametrize("name", [field.name for field in fields(Snapshot)])
def test_no_field_of_a_snapshot_can_be_changed_unnoticed(name: str) -> None:
    snapshot, parts = taken()

    with pytest.raises(Corrupt):
        open_snapshot(
            replace(snapshot, **{name: _other(getattr(snapshot, name))}), parts, execution_id=EXECUTION, rules=RULES
        )


@given(st.integers(0, 2**32))
def test_no_byte_of_its_body_can_be_changed_unnoticed(place: int) -> None:
    snapshot, parts = taken()
    at = place % len(parts[0])
    touched = parts[0][:at] + bytes([parts[0][at] ^ (1 << place % 8)]) + parts[0][at + 1 :]

    try:
        opened = open_snapshot(snapshot, [touched], execution_id=EXECUTION, rules=RULES)
    except Corrupt:
        return
    # A few bits of the packing mean nothing.
    assert opened.state == open_snapshot(snapshot, parts, execution_id=EXECUTION, rules=RULES).state


def test_a_snapshot_that_was_sealed_again_over_another_body_does_not_fit_its_own_words() -> None:
    snapshot, _ = taken()
    other, parts = taken(seed=4)
    forged = replace(snapshot, body_sha256=other.body_sha256, parts=other.parts)
    forged = replace(forged, checksum=forged.sealed())

    with pytest.raises(Corrupt):
        open_snapshot(forged, parts, execution_id=EXECUTION, rules=RULES)


@pytest.mark.parametrize(
    "rules",
    [
        replace(RULES, code_version="1.0+abd"),
        replace(RULES, upcasters="0" * 64),
        replace(RULES, row_format=99),
        replace(RULES, state_format=99),
    ],
)
def test_a_snapshot_of_other_rules_or_of_another_execution_is_not_opened(rules: Rules) -> None:
    snapshot, parts = taken()

    with pytest.raises(Corrupt, match="other rules"):
        open_snapshot(snapshot, parts, execution_id=EXECUTION, rules=rules)
    with pytest.raises(Corrupt, match="another execution"):
        open_snapshot(snapshot, parts, execution_id=EXECUTION + 1, rules=RULES)


@given(st.integers(1, 600))
def test_few_snapshots_are_kept_and_what_was_dropped_is_never_wanted_again(count: int) -> None:
    kept: set[int] = set()
    for number in range(1, count + 1):
        wanted = positions_to_keep([*kept, number * 100], interval=100)
        assert wanted <= {*kept, number * 100}
        kept = wanted

    assert kept == positions_to_keep(range(100, (count + 1) * 100, 100), interval=100)
    assert {count * 100} <= kept
    assert len(kept) <= 2 * count.bit_length() + 1
    # Wherever somebody looks, the nearest before that is at most twice as far away as the newest.
    for at in range(1, count + 1):
        nearest = max((one // 100 for one in kept if one <= at * 100), default=0)
        assert at - nearest <= 2 * (count - at)


def _other(value: Any) -> Any:
    match value:
        case int():
            return value + 1
        case str():
            return value + "x"
        case dict():
            return {**value, "more": 1}
        case Rules():
            return replace(value, upcasters="1" * 64)
        case _:
            return value + timedelta(seconds=1)
