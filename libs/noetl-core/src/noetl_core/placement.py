"""How near to its data work is done: what a worker wants of it, and what is told of it. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from noetl_core.errors import InvalidInput, LocatorInvalid
from noetl_core.locator import Distance, Locator, distance, parse, worker_locator
from noetl_core.topology import ANYBODY
from noetl_core.values import dataclass

TOO_FAR = "placement.too_far"
"""Why a worker does not get work that is there: its data are farther than it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """What a worker wants; where it says nothing, its own place counts."""

    prefer_node: str = ""
    prefer_zone: str = ""
    max_distance: Distance = Distance.ANY
    source: str = ""
    """Where the data are, if it knows better."""

    def to_json(self) -> dict[str, Any] | None:
        """What an event tells of it; nothing if it wants nothing."""
        told = {"prefer_node": self.prefer_node, "prefer_zone": self.prefer_zone}
        if self.max_distance is not Distance.ANY:
            told["max_distance"] = self.max_distance.value
        return {name: value for name, value in told.items() if value} or None


ANYWHERE = Locality()


def max_distance_of(text: str) -> Distance:
    """A distance as callers write it; raises `InvalidInput`."""
    try:
        return Distance(text) if text else Distance.ANY
    except ValueError as exc:
        raise InvalidInput(f"max_distance is one of {', '.join(Distance)}, not {text!r}") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One piece of work at one worker. Where nobody knows where data are, nothing is far."""

    worker_locator: str
    locality: Locality
    source: str

    @property
    def distance(self) -> Distance | None:
        """How far the data are from where they are wanted; None if nobody knows."""
        is_short = len(self.worker_locator) + len(self.source) <= _REMEMBERED_CHARACTERS
        return (_known_distance if is_short else _distance)(self.worker_locator, self.locality, self.source)

    @property
    def is_allowed(self) -> bool:
        """Whether the worker takes work from so far."""
        found = self.distance
        return found is None or found.within(self.locality.max_distance)

    @property
    def rank(self) -> int:
        """For sorting: the nearest first, what nobody knows last."""
        return _RANKS[self.distance or Distance.ANY]

    def facts(self) -> dict[str, Any]:
        """What `frame.dispatched` and `command.claimed` tell of it."""
        found = self.distance
        placement = None
        if found is not None:
            placement = {
                "distance": found.value,
                "max_distance": self.locality.max_distance.value,
                "within_max_distance": self.is_allowed,
            }
        return {
            "worker_locator": self.worker_locator or None,
            "locality": self.locality.to_json(),
            "source_locality": self.source or None,
            "placement": placement,
        }


def placed(*, locator: str, locality: Locality, source: str) -> Placement:
    """Work whose data are at a place that the log tells; what the worker says of it counts more."""
    return Placement(worker_locator=locator, locality=locality, source=locality.source or source)


_RANKS: Final = {one: place for place, one in enumerate(Distance)}


def _distance(locator: str, locality: Locality, source: str) -> Distance | None:
    here, there = _wanted_place(locator, locality), _parsed(source)
    return None if here is None or there is None else distance(here, there)


_REMEMBERED_CHARACTERS: Final = 1_024
_known_distance = lru_cache(maxsize=16_384)(_distance)
"""A turn asks it of all workers that wait, and it stays as it is as long as they stand where they do."""


def _wanted_place(locator: str, locality: Locality) -> Locator | None:
    own = _parsed(locator)
    if not (locality.prefer_node or locality.prefer_zone):
        return own
    places = {key: values[0] for key, values in own.pairs()} if own else {}
    moved = bool(locality.prefer_zone) and locality.prefer_zone != places.get("zone")
    node = locality.prefer_node or (None if moved else places.get("node"))
    return worker_locator(
        tenant=places.get("tenant", ANYBODY),
        org=places.get("org", ANYBODY),
        region=places.get("region"),
        zone=locality.prefer_zone or places.get("zone"),
        cluster=places.get("cluster"),
        node=node,
        worker=places.get("worker", ANYBODY),
    )


def _parsed(text: str) -> Locator | None:
    try:
        return parse(text) if text else None
    except LocatorInvalid:
        return None
