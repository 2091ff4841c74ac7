from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from noetl_core.leasing import LeaseRow, share_out
from noetl_core.sharding import fair_share

names = st.sampled_from(["", "a", "b", "c"])
rows = st.lists(st.tuples(names, st.integers(0, 9), st.booleans()), min_size=1, max_size=70).map(
    lambda drawn: [
        LeaseRow(shard=shard, epoch=epoch, instance=name, expired=expired)
        for shard, (name, epoch, expired) in enumerate(drawn)
    ]
)


@given(rows=rows, reborn=st.booleans(), live=st.integers(1, 5))
def test_nobody_takes_more_than_its_share_or_what_another_holds(rows: list[LeaseRow], reborn: bool, live: int) -> None:
    shares = share_out(rows, instance="a", reborn=reborn, live_instances=live)

    held = dict(shares.held)
    assert len(held) <= fair_share(shard_count=len(rows), owners=live)
    for row in rows:
        if row.instance not in ("", "a") and not row.expired:
            assert row.shard not in held
        if row.instance == "a":
            assert (row.shard in held) != (row.shard in shares.given_back)


@given(rows=rows, reborn=st.booleans(), live=st.integers(1, 5))
def test_epochs_grow_exactly_when_the_owner_changes(rows: list[LeaseRow], reborn: bool, live: int) -> None:
    held = dict(share_out(rows, instance="a", reborn=reborn, live_instances=live).held)

    for row in rows:
        if row.shard in held:
            changes = row.instance != "a" or reborn
            assert held[row.shard] == row.epoch + changes


@given(rows=rows, live=st.integers(1, 5))
def test_the_share_is_filled_as_far_as_there_is_something_free(rows: list[LeaseRow], live: int) -> None:
    shares = share_out(rows, instance="a", reborn=False, live_instances=live)

    available = [row for row in rows if row.instance in ("", "a") or row.expired]
    assert len(shares.held) == min(len(available), fair_share(shard_count=len(rows), owners=live))


def test_rounds_of_heartbeats_end_in_a_fair_and_stable_sharing() -> None:
    rows = [LeaseRow(shard=shard, epoch=0, instance="", expired=True) for shard in range(64)]
    owners = ["a", "b", "c", "d", "e"]
    for _ in range(len(owners)):
        for owner in owners:
            shares = share_out(rows, instance=owner, reborn=False, live_instances=len(owners))
            held = dict(shares.held)
            rows = [
                replace(row, instance=owner, epoch=held[row.shard], expired=False)
                if row.shard in held
                else replace(row, instance="", expired=True)
                if row.shard in shares.given_back
                else row
                for row in rows
            ]

    assert sorted(sum(row.instance == owner for row in rows) for owner in owners) == [12, 13, 13, 13, 13]
    for owner in owners:
        assert share_out(rows, instance=owner, reborn=False, live_instances=5).given_back == ()
