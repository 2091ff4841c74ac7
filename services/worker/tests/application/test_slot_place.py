"""Slots on executors say where they are, and never that they are where their driver is."""

from __future__ import annotations

import socket

import pytest
from noetl_core.locator import Distance
from noetl_core.topology import Topology
from noetl_worker.application.slot_order import SlotOrder
from noetl_worker.application.slot_place import place_of_executor
from noetl_worker.bootstrap.slot_process import _place, worker_of

DRIVER = Topology(node="n1", zone="z1", region="r1", cluster="c1", tenant="acme", organization="ops")
VARIABLES = {"NOETL_NODE_ID": "n1", "NOETL_ZONE": "z1", "NOETL_REGION": "r1"}


def told(own: Topology, *, host: str = "elsewhere", limit: Distance = Distance.ANY) -> str:
    place = place_of_executor(own, host=host, driver=DRIVER, driver_host="driver-host")
    return place.locator_of("w", limit=limit)


def test_an_executor_is_where_its_own_environment_says() -> None:
    own = Topology(node="n9", zone="z2", region="r1", cluster="c1")

    assert told(own) == "noetl://tenant/acme/org/ops/region/r1/zone/z2/cluster/c1/node/n9/worker/w"


def test_an_executor_that_was_told_nothing_is_at_its_host_and_in_no_zone_of_its_driver() -> None:
    assert told(Topology()) == "noetl://tenant/acme/org/ops/node/elsewhere/worker/w"


@pytest.mark.parametrize(
    ("own", "host"),
    [(Topology(), "driver-host"), (Topology(node="n1"), "a-pod"), (Topology(node="n1", zone="z1"), "a-pod")],
    ids=["the same host", "the same node", "the same node and zone"],
)
def test_an_executor_on_its_driver_s_node_is_in_its_zone_too(own: Topology, host: str) -> None:
    assert told(own, host=host) == "noetl://tenant/acme/org/ops/region/r1/zone/z1/cluster/c1/node/n1/worker/w"


def test_a_node_of_the_same_name_in_another_cluster_is_another_node() -> None:
    own = Topology(node="n1", cluster="c2")

    assert told(own) == "noetl://tenant/acme/org/ops/cluster/c2/node/n1/worker/w"


@pytest.mark.parametrize(
    ("own", "limit", "says"),
    [
        (Topology(), Distance.NODE, False),
        (Topology(node="n9"), Distance.NODE, True),
        (Topology(node="n9"), Distance.ZONE, False),
        (Topology(node="n9", zone="z2"), Distance.ZONE, True),
        (Topology(zone="z2"), Distance.REGION, False),
    ],
)
def test_a_limit_that_asks_for_more_than_was_told_gets_no_place_so_that_nothing_is_far(
    own: Topology, limit: Distance, says: bool
) -> None:
    assert bool(told(own, limit=limit)) is says


def order(*, driver_host: str, locator: str = "") -> SlotOrder:
    return SlotOrder(
        execution_id=7,
        stage_id="7-ab",
        owner="worker-0.s1",
        pool="default",
        locator=locator,
        max_distance="any",
        rates="",
        slice_seconds=1.0,
        token="t",
        variables=VARIABLES,
        driver_host=driver_host,
    )


def test_the_place_of_a_slot_is_read_from_the_environment_of_its_process_and_not_from_the_order_s() -> None:
    sent = SlotOrder.from_json(order(driver_host="driver-host").to_json())

    worker = worker_of(sent, "3", _place(sent, {"NOETL_NODE_ID": "n9", "NOETL_ZONE": "z2"}))
    at_host = worker_of(sent, "3", _place(sent, {}))

    assert worker.worker_id == "worker-0.s1-3"
    assert worker.locator == "noetl://tenant/%2A/org/%2A/zone/z2/node/n9/worker/worker-0.s1-3"
    assert at_host.locator == f"noetl://tenant/%2A/org/%2A/node/{socket.gethostname()}/worker/worker-0.s1-3"


def test_slots_in_the_worker_s_own_session_are_where_it_is_whatever_their_environment_says() -> None:
    sent = SlotOrder.from_json(order(driver_host="", locator="noetl://worker/w").to_json())

    assert _place(sent, {"NOETL_NODE_ID": "n9"}) is None
    assert worker_of(sent, "3", None).locator == "noetl://worker/w"
