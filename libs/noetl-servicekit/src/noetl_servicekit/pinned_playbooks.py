"""Playbook versions that executions are pinned to: they never change, so each is fetched and read once."""

from collections import OrderedDict
from typing import Final

from noetl_core.playbook.model import Playbook
from noetl_core.playbook.support import REGISTERED
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.catalog import Catalog
from noetl_core.ports.event_log import Scope

KEPT: Final = 256


class PinnedPlaybooks:
    """The last used versions by catalog id."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept: OrderedDict[str, Playbook] = OrderedDict()

    async def get(self, *, tenant_id: str, organization_id: str, catalog_id: str) -> Playbook:
        """The playbook of a version; raises `NotFound` (catalog.not_found)."""
        known = self._kept.get(catalog_id)
        if known is None:
            scope = Scope(tenant_id=tenant_id, organization_id=organization_id)
            source = await self._catalog.get(scope, catalog_id=catalog_id)
            # Accepted when it was registered; what a newer release thinks of it does not matter any more.
            known, _ = parse_playbook(source.content, supported=REGISTERED)
            self._kept[catalog_id] = known
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(catalog_id)
        return known
