"""How near work is to its data, as events tell it."""

from __future__ import annotations

import pytest
from noetl_core.errors import InvalidInput
from noetl_core.locator import Distance, Locator, distance, worker_locator
from noetl_core.placement import ANYWHERE, Locality, max_distance_of, placed


def at(node: str, *, zone: str = "z1", region: str = "eu", cluster: str = "c1") -> str:
    locator = worker_locator(tenant="t", org="o", region=region, zone=zone, cluster=cluster, node=node, worker="w")
    return str(locator)


@pytest.mark.parametrize(
    ("source", "distance"),
    [
        (at("n1"), "node"),
        (at("n2"), "zone"),
        (at("n2", zone="z2"), "region"),
        (at("n2", zone="z2", region="us"), "cluster"),
        (at("n2", zone="z2", region="us", cluster="c2"), "any"),
    ],
)
def test_the_same_node_is_nearer_than_its_zone_region_and_cluster(source: str, distance: str) -> None:
    placement = placed(locator=at("n1"), locality=Locality(max_distance=Distance.ZONE), source=source)

    within = distance in {"node", "zone"}
    told = placement.facts()
    assert told["placement"] == {"distance": distance, "max_distance": "zone", "within_max_distance": within}
    assert placement.is_allowed == within


def test_nothing_is_far_from_a_place_that_nobody_knows() -> None:
    near = Locality(max_distance=Distance.NODE)
    for locator, source in (("", at("n1")), (at("n1"), ""), (at("n1"), "nonsense")):
        placement = placed(locator=locator, locality=near, source=source)
        assert placement.is_allowed
        assert placement.facts()["placement"] is None


def test_what_a_worker_says_counts_more_than_what_is_known() -> None:
    elsewhere = Locality(prefer_node="n7", prefer_zone="z2", source=at("n7", zone="z2"))
    placement = placed(locator=at("n1"), locality=elsewhere, source=at("n1"))
    assert (placement.distance, placement.facts()["source_locality"]) == (Distance.NODE, at("n7", zone="z2"))
    other_zone = placed(locator=at("n1"), locality=Locality(prefer_zone="z2"), source=at("n9", zone="z2"))
    assert other_zone.distance is Distance.ZONE
    unplaced = placed(locator="", locality=Locality(prefer_node="n1"), source=at("n1"))
    assert unplaced.distance is Distance.NODE


def test_how_far_a_worker_is_is_worked_out_once_however_often_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Locator] = []

    def noted(here: Locator, there: Locator) -> Distance:
        measured.append(here)
        return distance(here, there)

    monkeypatch.setattr("noetl_core.placement.distance", noted)
    for _ in range(3):
        for node in ("waiting-1", "waiting-2"):
            placement = placed(locator=at(node), locality=ANYWHERE, source=at("made-here"))
            assert (placement.is_allowed, placement.rank) == (True, 1)

    assert len(measured) == 2


def test_a_distance_that_nobody_knows_is_refused() -> None:
    assert (max_distance_of(""), max_distance_of("zone")) == (Distance.ANY, Distance.ZONE)
    with pytest.raises(InvalidInput, match="moon"):
        max_distance_of("moon")
    assert ANYWHERE.to_json() is None
