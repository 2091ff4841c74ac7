from hypothesis import given
from hypothesis import strategies as st
from noetl_core.ports.outbox import fair_share


@given(shards=st.integers(1, 200), publishers=st.sets(st.text(min_size=1), min_size=1, max_size=20))
def test_shares_are_as_equal_as_can_be_and_leave_nothing_over(shards: int, publishers: set[str]) -> None:
    shares = [fair_share(shards, publishers=sorted(publishers), owner=owner) for owner in publishers]

    assert sum(shares) == shards
    assert max(shares) - min(shares) <= 1
