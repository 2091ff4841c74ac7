"""What is missing of a lake is cut into slices of bounded size, each version in exactly one of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_core.errors import LakeDiverged
from noetl_core.lake.manifest import Position
from noetl_core.lake.slices import (
    Slice,
    VersionRange,
    WrittenSlice,
    check_joints,
    cut,
    missing_ranges,
    positions_after,
)
from noetl_core.ports.streams import StreamHead


def head(execution_id: int, version: int) -> StreamHead:
    return StreamHead(
        execution_id=execution_id,
        tenant_id="acme",
        organization_id="ops",
        version=version,
        checksum=f"head of {execution_id}",
        terminal=False,
        updated_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def spans(one: Slice) -> list[tuple[int, int, int]]:
    return [(part.execution_id, part.first, part.last) for part in one.ranges]


def at(version: int, checksum: str = "") -> Position:
    return Position(version=version, checksum=checksum)


def written(*, follows: Sequence[str], ends: Sequence[str]) -> WrittenSlice:
    return WrittenSlice(files=(), follows=tuple(follows), ends=tuple(ends))


def test_only_what_is_beyond_the_lake_is_missing() -> None:
    ranges = missing_ranges([head(1, 5), head(2, 7), head(3, 2)], {1: at(5, "head of 1"), 2: at(4)})

    assert [(one.execution_id, one.first, one.last) for one in ranges] == [(2, 5, 7), (3, 1, 2)]


def test_a_history_that_does_not_fit_goes_on_in_the_next_slice() -> None:
    slices = list(cut(missing_ranges([head(1, 4), head(2, 23), head(3, 3)], {}), events=10, first_batch=7))

    assert [one.batch for one in slices] == [7, 8, 9]
    assert [spans(one) for one in slices] == [
        [(1, 1, 4), (2, 1, 6)],
        [(2, 7, 16)],
        [(2, 17, 23), (3, 1, 3)],
    ]


def test_only_the_end_of_a_history_has_to_be_what_its_head_says() -> None:
    first, second = cut(missing_ranges([head(1, 12)], {}), events=10, first_batch=1)

    assert (first.ranges[0].checksum, second.ranges[0].checksum) == (None, "head of 1")


@given(lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=30), events=st.integers(1, 50))
def test_every_version_is_in_one_slice_and_all_slices_but_the_last_are_full(
    lengths: list[tuple[int, int]], events: int
) -> None:
    heads = [head(number, position + beyond) for number, (position, beyond) in enumerate(lengths)]
    positions = {number: at(position) for number, (position, _) in enumerate(lengths)}

    slices = list(cut(missing_ranges(heads, positions), events=events, first_batch=1))

    assert [one.batch for one in slices] == list(range(1, len(slices) + 1))
    assert all(one.events == events for one in slices[:-1])
    assert all(0 < one.events <= events for one in slices)
    found = [(key, version) for one in slices for key, first, last in spans(one) for version in range(first, last + 1)]
    assert found == [
        (number, version)
        for number, (position, beyond) in enumerate(lengths)
        for version in range(position + 1, position + beyond + 1)
    ]


def test_where_a_history_was_cut_its_ends_have_to_belong_to_each_other() -> None:
    first, second = cut(missing_ranges([head(1, 12), head(2, 1)], {}), events=10, first_batch=1)
    positions = positions_after(first, written(follows=[""], ends=["tenth"]))

    assert positions == {1: at(10, "tenth")}
    check_joints({}, first, written(follows=[""], ends=["tenth"]))
    check_joints(positions, second, written(follows=["tenth", ""], ends=["twelfth", "first"]))
    with pytest.raises(LakeDiverged, match="execution 1: event 11 follows another"):
        check_joints(positions, second, written(follows=["another", ""], ends=["twelfth", "first"]))


def test_each_history_follows_what_an_earlier_run_has_left_of_it() -> None:
    positions = {1: at(3, "third of 1"), 2: at(2, "second of 2"), 3: at(1)}
    (one,) = cut(missing_ranges([head(number, 5) for number in (1, 2, 3)], positions), events=100, first_batch=4)

    check_joints(positions, one, written(follows=["third of 1", "second of 2", "unknown"], ends=["", "", ""]))
    with pytest.raises(LakeDiverged, match="execution 2: event 3 follows another, the lake's event before it has sec"):
        check_joints(positions, one, written(follows=["third of 1", "another", "unknown"], ends=["", "", ""]))


def test_a_log_that_has_less_than_the_lake_or_something_else_is_another_log() -> None:
    with pytest.raises(LakeDiverged, match=r"up to 9, and the log ends at 5.*begin another lake"):
        missing_ranges([head(1, 5)], {1: at(9)})
    with pytest.raises(LakeDiverged, match="event 5 has checksum another in the lake"):
        missing_ranges([head(1, 5)], {1: at(5, "another")})
    assert missing_ranges([head(1, 5)], {1: at(5)}) == [], "an earlier release did not say"


def test_a_range_counts_its_events_first_and_last_included() -> None:
    assert VersionRange(execution_id=1, tenant_id="acme", first=3, last=3).events == 1
