"""Where a process runs, as its operator tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from noetl_core.locator import worker_locator

ANYBODY: Final = "*"
"""The tenant and organization of a process that works for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A node in a zone of a region, and the cluster that it belongs to; what nobody said is empty."""

    node: str = ""
    zone: str = ""
    region: str = ""
    cluster: str = ""
    tenant: str = ANYBODY
    organization: str = ANYBODY

    @property
    def is_known(self) -> bool:
        """Whether anybody said where this is."""
        return bool(self.node or self.zone or self.region or self.cluster)

    def locator_of(self, worker_id: str) -> str:
        """The address of a worker here; empty if nobody said where here is, since a name alone tells nothing more."""
        if not self.is_known:
            return ""
        return str(
            worker_locator(
                tenant=self.tenant,
                org=self.organization,
                region=self.region or None,
                zone=self.zone or None,
                cluster=self.cluster or None,
                node=self.node or None,
                worker=worker_id,
            )
        )
