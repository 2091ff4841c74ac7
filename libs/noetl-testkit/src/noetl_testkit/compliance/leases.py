"""What every keeper of shard leases must do; an adapter's tests subclass this and supply one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

import pytest
from noetl_core.errors import InvalidInput
from noetl_core.ports.leases import Holding, Replica, ShardLeases

SHARDS = 64


def replica(name: str, incarnation: str = "1", *, role: str = "planner") -> Replica:
    return Replica(role=role, instance=name, incarnation=incarnation, address=f"{name}:{incarnation}")


def shards(holding: Holding) -> set[int]:
    return {lease.shard for lease in holding.leases}


def epochs(holding: Holding) -> dict[int, int]:
    return {lease.shard: lease.epoch for lease in holding.leases}


class ShardLeasesCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def leases(self) -> ShardLeases:
        """64 shards, held by nobody, for the roles planner and projector."""

    async def test_an_installation_has_a_number_of_shards_and_a_generation(self, leases: ShardLeases) -> None:
        installation = await leases.installation()

        assert installation.shard_count == SHARDS
        assert installation.log_generation

    async def test_everybody_is_told_of_the_same_branch_of_the_log(self, leases: ShardLeases) -> None:
        one = await leases.hold(replica("p-0"), lease_seconds=30)
        other = await leases.hold(replica("p-0", role="projector"), lease_seconds=30)
        again = await leases.hold(replica("p-0", "2"), lease_seconds=30)
        deposed = await leases.hold(replica("p-0"), lease_seconds=30)

        assert one.log_branch
        assert {held.log_branch for held in (one, other, again, deposed)} == {one.log_branch}

    async def test_everybody_is_told_when_the_first_lease_of_another_one_ends(self, leases: ShardLeases) -> None:
        alone = await leases.hold(replica("a"), lease_seconds=30)
        beside = await leases.hold(replica("b"), lease_seconds=300)
        await leases.hold(replica("a"), lease_seconds=200)
        again = await leases.hold(replica("b"), lease_seconds=300)
        other_role = await leases.hold(replica("a", role="projector"), lease_seconds=30)

        assert alone.next_expiry_seconds == other_role.next_expiry_seconds == 0
        assert 0 < beside.next_expiry_seconds <= 30
        assert 30 < again.next_expiry_seconds <= 200

    async def test_who_is_alone_holds_everything(self, leases: ShardLeases) -> None:
        held = await leases.hold(replica("a"), lease_seconds=30)

        assert held.live_instances == 1
        assert [lease.shard for lease in held.leases] == list(range(SHARDS))
        assert {(lease.epoch, lease.instance, lease.address) for lease in held.leases} == {(1, "a", "a:1")}

    async def test_renewing_keeps_epochs_and_moves_the_end(self, leases: ShardLeases) -> None:
        first = await leases.hold(replica("a"), lease_seconds=30)
        second = await leases.hold(replica("a"), lease_seconds=30)

        assert epochs(second) == epochs(first)
        assert all(
            after.leased_until > before.leased_until for before, after in zip(first.leases, second.leases, strict=True)
        )

    async def test_shards_are_shared_fairly_after_a_round_of_heartbeats(self, leases: ShardLeases) -> None:
        names = ("a", "b", "c")
        for _ in range(3):
            held = {name: await leases.hold(replica(name), lease_seconds=30) for name in names}

        assert sorted(len(one.leases) for one in held.values()) == [20, 22, 22]
        assert set().union(*(shards(one) for one in held.values())) == set(range(SHARDS))
        assert {one.live_instances for one in held.values()} == {3}

    async def test_no_shard_ever_has_two_owners(self, leases: ShardLeases) -> None:
        names = [f"r{n}" for n in range(8)]
        for _ in range(6):
            await asyncio.gather(*(leases.hold(replica(name), lease_seconds=30) for name in names))

        listed = await leases.list_shards("planner")
        held = await asyncio.gather(*(leases.hold(replica(name), lease_seconds=30) for name in names))

        assert sorted(shard for one in held for shard in shards(one)) == list(range(SHARDS))
        assert {lease.instance for lease in listed} == set(names)

    async def test_epochs_grow_with_every_change_of_owner(self, leases: ShardLeases) -> None:
        before = epochs(await leases.hold(replica("a"), lease_seconds=30))
        await leases.hold(replica("b"), lease_seconds=30)
        await leases.hold(replica("a"), lease_seconds=30)

        taken = epochs(await leases.hold(replica("b"), lease_seconds=30))

        assert len(taken) == 32
        assert all(epoch == before[shard] + 1 for shard, epoch in taken.items())

    async def test_a_new_incarnation_retakes_its_leases_at_once(self, leases: ShardLeases) -> None:
        old = await leases.hold(replica("a", "1"), lease_seconds=30)

        new = await leases.hold(replica("a", "2"), lease_seconds=30)

        assert shards(new) == shards(old)
        assert all(epochs(new)[shard] == epoch + 1 for shard, epoch in epochs(old).items())
        assert {lease.address for lease in new.leases} == {"a:2"}

    async def test_a_deposed_incarnation_gets_nothing_more(self, leases: ShardLeases) -> None:
        await leases.hold(replica("a", "1"), lease_seconds=30)
        new = await leases.hold(replica("a", "2"), lease_seconds=30)

        deposed = await leases.hold(replica("a", "1"), lease_seconds=30)
        released = await leases.release(replica("a", "1"))
        still = await leases.hold(replica("a", "2"), lease_seconds=30)

        assert deposed.leases == ()
        assert released == 0
        assert epochs(still) == epochs(new)

    async def test_an_expired_lease_passes_to_whoever_is_alive(self, leases: ShardLeases) -> None:
        before = epochs(await leases.hold(replica("a"), lease_seconds=0.05))

        held = await leases.hold(replica("b"), lease_seconds=30)
        async with asyncio.timeout(60):
            while len(held.leases) < SHARDS:
                held = await leases.hold(replica("b"), lease_seconds=30)

        assert all(epoch == before[shard] + 1 for shard, epoch in epochs(held).items())

    async def test_a_live_lease_is_not_taken(self, leases: ShardLeases) -> None:
        await leases.hold(replica("a"), lease_seconds=30)

        assert (await leases.hold(replica("b"), lease_seconds=30)).leases == ()

    async def test_an_expired_lease_that_nobody_took_is_still_its_owners(self, leases: ShardLeases) -> None:
        before = await leases.hold(replica("a"), lease_seconds=0.01)

        async with asyncio.timeout(60):
            while any(one.instance for one in await leases.list_shards("planner")):  # noqa: ASYNC110 - it just passes
                await asyncio.sleep(0.005)

        assert epochs(await leases.hold(replica("a"), lease_seconds=30)) == epochs(before)

    async def test_what_is_released_is_free_at_once(self, leases: ShardLeases) -> None:
        await leases.hold(replica("a"), lease_seconds=30)

        assert await leases.release(replica("a")) == SHARDS
        assert await leases.release(replica("unknown")) == 0
        taken = await leases.hold(replica("b"), lease_seconds=30)

        assert len(taken.leases) == SHARDS
        assert taken.live_instances == 1
        assert set(epochs(taken).values()) == {2}

    async def test_roles_own_shards_independently(self, leases: ShardLeases) -> None:
        await leases.hold(replica("a"), lease_seconds=30)

        held = await leases.hold(replica("a", role="projector"), lease_seconds=30)

        assert len(held.leases) == SHARDS
        assert set(epochs(held).values()) == {1}

    async def test_shards_are_listed_with_their_owners(self, leases: ShardLeases) -> None:
        nobody = await leases.list_shards("planner")
        await leases.hold(replica("a"), lease_seconds=30)

        owned = await leases.list_shards("planner")

        assert [lease.shard for lease in owned] == list(range(SHARDS))
        assert {lease.instance for lease in nobody} == {""}
        assert {(lease.instance, lease.address) for lease in owned} == {("a", "a:1")}

    async def test_what_cannot_be_held_is_refused(self, leases: ShardLeases) -> None:
        for wrong, seconds in (
            (replica("a", role="cook"), 30.0),
            (replica("a"), 0.0),
            (replica("a"), 1e9),
            (replica(""), 30.0),
            (replica("a", ""), 30.0),
        ):
            with pytest.raises(InvalidInput):
                await leases.hold(wrong, lease_seconds=seconds)
