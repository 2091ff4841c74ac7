"""Where slots of a stage are that run on an executor of a cluster: as it was told, and not where their driver is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from noetl_core.locator import Distance
from noetl_core.topology import Topology

_WIDER: Final = ("zone", "region", "cluster")
"""Two nodes of one name may be in two of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlace:
    """What is known of an executor, and the name of its host, which is a node where nobody has named one."""

    told: Topology
    host: str

    @property
    def topology(self) -> Topology:
        """Everything, with the name that is only supposed."""
        return replace(self.told, node=self.told.node or self.host)

    def locator_of(self, worker_id: str, *, limit: Distance) -> str:
        """What claims tell of it; nothing if a limit asks for more than anybody told.

        A place that is not named is nowhere near: slots that say half of it would be refused everything, and so
        would others be whatever these had begun. Where nobody knows a place, nothing is far.
        """
        if limit is not Distance.ANY and not getattr(self.told, limit.value):
            return ""
        return self.topology.locator_of(worker_id)


def place_of_executor(own: Topology, *, host: str, driver: Topology, driver_host: str) -> SlotPlace:
    """From an executor's environment; what it was not told is as for its driver, if both are on one node."""
    is_same_node = own.node == driver.node if own.node else host == driver_host
    is_beside = is_same_node and not any(_is_apart(getattr(own, name), getattr(driver, name)) for name in _WIDER)
    told = {name: getattr(own, name) or (getattr(driver, name) if is_beside else "") for name in ("node", *_WIDER)}
    return SlotPlace(told=Topology(**told, tenant=driver.tenant, organization=driver.organization), host=host)


def _is_apart(here: str, there: str) -> bool:
    return bool(here and there) and here != there
