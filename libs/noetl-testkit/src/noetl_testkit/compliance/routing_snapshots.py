"""What every store of routing snapshots must do; an adapter's tests subclass this and supply one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pytest
from noetl_core.append import END_KEY, AppendRequest, Fence, StreamAppend
from noetl_core.canonical import sha256_hex
from noetl_core.catalog import to_draft
from noetl_core.errors import Fenced, InvalidInput
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.leases import Replica, ShardLeases
from noetl_core.ports.routing_snapshots import RoutingSnapshotStore
from noetl_core.routing_snapshots import RoutingSnapshot
from noetl_core.sharding import shard_of
from noetl_core.values import replace

from noetl_testkit.compliance.event_log import SHARDS, new_id
from noetl_testkit.histories import History, initialized, issued

EXECUTION, OTHER = new_id(), new_id()
PLANNER = Replica(role="planner", instance="one", incarnation="1", address="")
HEIR = replace(PLANNER, incarnation="2")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPlace:
    """A store, empty, beside a log and leases that are empty too."""

    store: RoutingSnapshotStore
    log: EventLog
    leases: ShardLeases


def snapshot(
    version: int, *, execution_id: int = EXECUTION, body: bytes = b"packed", rules: str = "r"
) -> RoutingSnapshot:
    """One that no planner would open, which is no business of a store."""
    return RoutingSnapshot(
        execution_id=execution_id,
        stream_version=version,
        event_checksum=f"checksum {version}",
        rules=rules,
        state_format=2,
        body=body,
        body_sha256=sha256_hex(body),
    )


async def begin(place: RoutingPlace, *, execution_id: int = EXECUTION, commands: int = 9) -> None:
    """An execution of a few events."""
    history = History(execution_id).add(initialized())
    for number in range(commands):
        history.add(issued(history, f"s{number}"))
    await history.append_to(place.log)


async def own(place: RoutingPlace, replica: Replica = PLANNER, *, execution_id: int = EXECUTION) -> Fence:
    """Have the shards; a later incarnation deposes the one before."""
    held = await place.leases.hold(replica, lease_seconds=60)
    shard = shard_of(execution_id, SHARDS)
    (epoch,) = [lease.epoch for lease in held.leases if lease.shard == shard]
    return Fence(role=replica.role, shard=shard, epoch=epoch)


async def end(place: RoutingPlace, *, execution_id: int = EXECUTION) -> None:
    """Somebody cancels it."""
    ended = to_draft(ExecutionCancelled(reason="enough", cancelled_by="test"), idempotency_key=END_KEY)
    stream = StreamAppend(execution_id=execution_id, drafts=(ended,))
    await place.log.append(AppendRequest(tenant_id="default", organization_id="default", streams=(stream,)))


class RoutingSnapshotsCompliance(ABC):
    """One suite, run by the adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def place(self) -> RoutingPlace:
        """Everything empty."""

    async def test_what_was_kept_comes_back_as_it_was(self, place: RoutingPlace) -> None:
        await begin(place)
        fence = await own(place)
        assert await place.store.find(EXECUTION) is None

        assert await place.store.keep(snapshot(7, body=bytes(range(256)) * 1000), fence=fence)

        assert await place.store.find(EXECUTION) == snapshot(7, body=bytes(range(256)) * 1000)
        assert await place.store.find(OTHER) is None

    async def test_the_newest_wins_whoever_comes_last(self, place: RoutingPlace) -> None:
        await begin(place)
        fence = await own(place)

        kept = [await place.store.keep(snapshot(version), fence=fence) for version in (5, 8, 6, 8)]

        assert kept == [True, True, False, True]
        assert await place.store.find(EXECUTION) == snapshot(8)

    async def test_another_release_may_take_the_same_place(self, place: RoutingPlace) -> None:
        await begin(place)
        fence = await own(place)
        await place.store.keep(snapshot(8), fence=fence)

        assert await place.store.keep(snapshot(8, rules="of the next release"), fence=fence)

        found = await place.store.find(EXECUTION)
        assert found is not None
        assert found.rules == "of the next release"

    async def test_a_planner_that_was_deposed_leaves_nothing(self, place: RoutingPlace) -> None:
        await begin(place)
        fence = await own(place)
        await place.store.keep(snapshot(5), fence=fence)
        heir = await own(place, HEIR)

        with pytest.raises(Fenced):
            await place.store.keep(snapshot(8), fence=fence)

        assert await place.store.find(EXECUTION) == snapshot(5)
        assert await place.store.keep(snapshot(8), fence=heir)

    async def test_the_fence_is_that_of_the_execution(self, place: RoutingPlace) -> None:
        await begin(place)
        fence = await own(place)
        held = await place.leases.hold(PLANNER, lease_seconds=60)
        foreign = next(lease for lease in held.leases if lease.shard != fence.shard)

        with pytest.raises(InvalidInput):
            await place.store.keep(snapshot(5), fence=Fence(role="planner", shard=foreign.shard, epoch=foreign.epoch))

        assert await place.store.find(EXECUTION) is None

    async def test_nothing_is_kept_that_the_log_does_not_reach(self, place: RoutingPlace) -> None:
        await begin(place)
        fence = await own(place)

        assert not await place.store.keep(snapshot(11), fence=fence)
        assert not await place.store.keep(snapshot(1, execution_id=OTHER), fence=await own(place, execution_id=OTHER))

        assert await place.store.find(EXECUTION) is None
        assert await place.store.find(OTHER) is None

    async def test_nothing_is_kept_of_an_execution_that_has_ended(self, place: RoutingPlace) -> None:
        await begin(place)
        fence = await own(place)
        await end(place)

        assert not await place.store.keep(snapshot(8), fence=fence)
        assert await place.store.find(EXECUTION) is None

    async def test_what_ended_executions_left_is_dropped_and_nothing_else(self, place: RoutingPlace) -> None:
        for execution_id in (EXECUTION, OTHER):
            await begin(place, execution_id=execution_id)
            fence = await own(place, execution_id=execution_id)
            await place.store.keep(snapshot(8, execution_id=execution_id), fence=fence)
        assert await place.store.drop_ended() == 0
        await end(place)

        assert await place.store.drop_ended() == 1

        assert await place.store.find(EXECUTION) is None
        assert await place.store.find(OTHER) == snapshot(8, execution_id=OTHER)
