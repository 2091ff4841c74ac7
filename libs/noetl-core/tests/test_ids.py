"""Identities: snowflakes rise whatever the clock does, derived ids depend on their cause only."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.errors import InvalidInput
from noetl_core.ids import (
    MAX_ID,
    MAX_NODE,
    SNOWFLAKE_EPOCH_MS,
    Snowflake,
    command_id,
    epoch_id,
    first_snowflake,
    parse_id,
    snowflake_ms,
)

thorough = settings(deadline=None, derandomize=True)

NOW_MS = 1_750_000_000_000
MOMENTS = st.integers(SNOWFLAKE_EPOCH_MS, SNOWFLAKE_EPOCH_MS + 2**41 - 2)


def test_a_snowflake_is_time_then_node_then_sequence() -> None:
    snowflake = Snowflake(5)
    milliseconds = NOW_MS - SNOWFLAKE_EPOCH_MS

    assert snowflake.next(NOW_MS) == milliseconds << 22 | 5 << 12 | 0
    assert snowflake.next(NOW_MS) == milliseconds << 22 | 5 << 12 | 1


def test_the_epoch_is_the_first_of_january_2024() -> None:
    assert Snowflake(0).next(1_704_067_200_000) == 0


def test_a_full_sequence_continues_in_the_next_millisecond() -> None:
    snowflake = Snowflake(MAX_NODE)
    ids = [snowflake.next(NOW_MS) for _ in range(4097)]

    assert snowflake_ms(ids[4095]) == NOW_MS
    assert snowflake_ms(ids[4096]) == NOW_MS + 1


@thorough
@given(st.lists(MOMENTS, min_size=2), st.integers(0, MAX_NODE))
def test_ids_rise_even_when_the_clock_steps_back(moments: list[int], node: int) -> None:
    snowflake = Snowflake(node)
    ids = [snowflake.next(moment) for moment in moments]

    assert ids == sorted(set(ids))
    assert all(0 <= number <= MAX_ID for number in ids)


@thorough
@given(MOMENTS, st.integers(0, MAX_NODE))
def test_the_time_of_an_id_bounds_it_from_both_sides(moment: int, node: int) -> None:
    number = Snowflake(node).next(moment)

    assert snowflake_ms(number) == moment
    assert first_snowflake(moment) <= number < first_snowflake(moment + 1)


def test_the_first_snowflake_of_a_time_before_the_epoch_is_the_first_of_all() -> None:
    assert first_snowflake(0) == 0


@pytest.mark.parametrize("node", [-1, MAX_NODE + 1])
def test_a_node_out_of_range_is_refused(node: int) -> None:
    with pytest.raises(InvalidInput):
        Snowflake(node)


@pytest.mark.parametrize("now_ms", [0, SNOWFLAKE_EPOCH_MS - 1, SNOWFLAKE_EPOCH_MS + 2**41])
def test_a_clock_that_cannot_be_right_is_refused(now_ms: int) -> None:
    with pytest.raises(InvalidInput, match="clock"):
        Snowflake(0).next(now_ms)


@thorough
@given(st.integers(1, MAX_ID))
def test_an_id_survives_as_text(number: int) -> None:
    assert parse_id(str(number)) == number


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "+1", "007", "1.0", "1e3", " 1", "1\n", "1_0", "٣", "²", str(MAX_ID + 1), "9" * 5000]
)
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="execution_id must be") as refusal:
        parse_id(text, what="execution_id")

    assert refusal.value.code == "request.invalid"


def test_a_command_id_is_fixed_by_its_cause() -> None:
    # Written out because ids of running executions must never change with a release.
    derived = command_id(execution_id=712345678901234567, step="start", activation=1, index=0, attempt=1)

    assert derived == "dfd11b6586cbbb11c836feba714f707c"
    assert re.fullmatch(r"[0-9a-f]{32}", derived)


def test_each_part_of_the_cause_makes_another_command() -> None:
    ids = {
        command_id(execution_id=1, step="a", activation=1, index=1, attempt=1),
        command_id(execution_id=2, step="a", activation=1, index=1, attempt=1),
        command_id(execution_id=1, step="b", activation=1, index=1, attempt=1),
        command_id(execution_id=1, step="a", activation=2, index=1, attempt=1),
        command_id(execution_id=1, step="a", activation=1, index=2, attempt=1),
        command_id(execution_id=1, step="a", activation=1, index=1, attempt=2),
    }

    assert len(ids) == 6


def test_an_epoch_id_names_execution_step_and_attempt() -> None:
    assert epoch_id(execution_id=42, step="fetch_pages", attempt=2) == "loop_42_fetch_pages_2"
