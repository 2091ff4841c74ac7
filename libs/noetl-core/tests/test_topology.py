"""Where a process runs, in the address of a worker."""

from noetl_core.locator import Distance, distance, parse
from noetl_core.topology import Topology


def test_a_worker_is_addressed_by_every_place_that_is_known() -> None:
    place = Topology(node="n1", zone="z", region="r", cluster="c")

    assert place.locator_of("w-1") == "noetl://tenant/%2A/org/%2A/region/r/zone/z/cluster/c/node/n1/worker/w-1"


def test_a_worker_of_which_nobody_said_where_it_is_has_no_address() -> None:
    assert Topology().locator_of("w-1") == ""


def test_workers_of_one_node_are_near_and_those_of_another_zone_are_not() -> None:
    here = Topology(node="n1", zone="z1", region="r")
    there = Topology(node="n2", zone="z2", region="r")

    first, beside, far = (parse(place.locator_of(name)) for place, name in ((here, "a"), (here, "b"), (there, "c")))

    assert distance(first, beside) is Distance.NODE
    assert distance(first, far) is Distance.REGION
