"""Shards: fixed for an execution, even over many, and all of them held between their owners."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.errors import InvalidInput
from noetl_core.ids import Snowflake
from noetl_core.sharding import MAX_SHARD_COUNT, fair_share, shard_of

thorough = settings(deadline=None, derandomize=True)


@pytest.mark.parametrize(("execution_id", "shard"), [(123456789, 0xCBF43926 % 64), (712345678901234567, 28)])
def test_the_shard_is_the_crc32_of_the_digits(execution_id: int, shard: int) -> None:
    # Shards are stored in head rows and consumer names: these numbers must never change.
    assert shard_of(execution_id, 64) == shard


def test_snowflakes_of_one_moment_spread_over_all_shards() -> None:
    snowflake = Snowflake(1)
    counts = Counter(shard_of(snowflake.next(1_750_000_000_000), 64) for _ in range(6400))

    assert len(counts) == 64
    assert max(counts.values()) < 200


@thorough
@given(st.integers(0, 2**63 - 1), st.integers(1, MAX_SHARD_COUNT))
def test_every_execution_has_a_shard_that_exists(execution_id: int, shard_count: int) -> None:
    assert 0 <= shard_of(execution_id, shard_count) < shard_count


@thorough
@given(st.integers(1, MAX_SHARD_COUNT), st.integers(1, 100))
def test_owners_with_their_fair_share_can_hold_every_shard_and_not_a_whole_round_more(
    shard_count: int, owners: int
) -> None:
    share = fair_share(shard_count=shard_count, owners=owners)

    assert share * owners >= shard_count
    assert (share - 1) * owners < shard_count


@pytest.mark.parametrize("shard_count", [0, -1, MAX_SHARD_COUNT + 1])
def test_an_impossible_number_of_shards_is_refused(shard_count: int) -> None:
    with pytest.raises(InvalidInput):
        shard_of(1, shard_count)
    with pytest.raises(InvalidInput):
        fair_share(shard_count=shard_count, owners=1)


def test_shards_need_an_owner() -> None:
    with pytest.raises(InvalidInput):
        fair_share(shard_count=64, owners=0)
