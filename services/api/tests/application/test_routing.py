"""Routing state is for planners: kept under their fence, bounded, whole, and dropped with its execution."""

from __future__ import annotations

import asyncio

import pytest
from noetl_api.application.routing import Routing
from noetl_api.entrypoints.routing_keeper import drop_ended_routing
from noetl_core.append import Fence
from noetl_core.canonical import sha256_hex
from noetl_core.errors import InvalidInput, NotPermitted
from noetl_core.routing_snapshots import MAX_BYTES
from noetl_core.values import replace
from noetl_servicekit.callers import Caller, Role
from noetl_testkit.compliance.event_log import SHARDS
from noetl_testkit.compliance.routing_snapshots import EXECUTION, RoutingPlace, begin, end, own, snapshot
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.leases import InMemoryShardLeases
from noetl_testkit.memory.routing_snapshots import InMemoryRoutingSnapshots
from noetl_testkit.until import until

SERVICE = Caller(name="planner", tenant_id="*", organization_id="*", role=Role.SERVICE)
ADMIN = Caller(name="root", tenant_id="default", organization_id="default", role=Role.ADMIN)


@pytest.fixture
def place() -> RoutingPlace:
    leases = InMemoryShardLeases(shard_count=SHARDS)
    log = InMemoryEventLog(leases=leases, shard_count=SHARDS)
    return RoutingPlace(store=InMemoryRoutingSnapshots(log, leases), log=log, leases=leases)


async def test_it_is_kept_for_planners_and_shown_to_nobody_else(place: RoutingPlace) -> None:
    await begin(place)
    fence, routing = await own(place), Routing(place.store)

    assert await routing.keep(SERVICE, snapshot(5), fence=fence)

    assert await routing.find(SERVICE, EXECUTION) == snapshot(5)
    with pytest.raises(NotPermitted):
        await routing.find(ADMIN, EXECUTION)
    with pytest.raises(NotPermitted):
        await routing.keep(ADMIN, snapshot(6), fence=fence)


async def test_what_is_no_snapshot_of_a_planner_is_refused(place: RoutingPlace) -> None:
    await begin(place)
    fence, routing = await own(place), Routing(place.store)
    large = b"x" * (MAX_BYTES + 1)

    for refused, under in (
        (snapshot(5), None),
        (snapshot(5), Fence(role="projector", shard=fence.shard, epoch=fence.epoch)),
        (snapshot(0), fence),
        (replace(snapshot(5), body=b"damaged on its way"), fence),
        (replace(snapshot(5), body=large, body_sha256=sha256_hex(large)), fence),
    ):
        with pytest.raises(InvalidInput):
            await routing.keep(SERVICE, refused, fence=under)

    assert await routing.find(SERVICE, EXECUTION) is None


async def test_it_goes_with_the_execution(place: RoutingPlace) -> None:
    await begin(place)
    await place.store.keep(snapshot(5), fence=await own(place))
    assert isinstance(place.store, InMemoryRoutingSnapshots)
    kept, beats = place.store.kept, list[int]()
    keeper = asyncio.create_task(drop_ended_routing(place.store, beat=lambda: beats.append(1), every_seconds=0.001))
    try:
        await until(lambda: len(beats) > 2)
        assert list(kept) == [EXECUTION]

        await end(place)

        await until(lambda: not kept)
    finally:
        keeper.cancel()
