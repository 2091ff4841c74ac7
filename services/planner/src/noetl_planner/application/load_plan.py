"""Brings together what routing needs besides the log; both parts never change, so they are kept."""

from __future__ import annotations

from collections import OrderedDict

from noetl_core.canonical import JsonObject, decode
from noetl_core.errors import Corrupt
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.catalog import Catalog
from noetl_core.ports.event_log import Scope
from noetl_core.ports.payloads import PayloadStore

_KEPT_PLAYBOOKS = 256


class LoadPlan:
    """Loads the pinned playbook from the catalog and the variables from the payload store."""

    def __init__(self, catalog: Catalog, payloads: PayloadStore, *, max_attempts: int) -> None:
        self._catalog = catalog
        self._payloads = payloads
        self._max_attempts = max_attempts
        self._playbooks: OrderedDict[str, Playbook] = OrderedDict()

    async def __call__(self, execution: Execution) -> Plan:
        """The plan of an execution whose first event has been folded."""
        playbook = await self._playbook(execution)
        workload: JsonObject = {}
        if execution.workload is not None:
            value = decode(await self._payloads.get(execution.workload))
            if not isinstance(value, dict):
                raise Corrupt(f"the variables of execution {execution.execution_id} are not an object")
            workload = value
        return Plan(playbook=playbook, workload=workload, max_attempts=self._max_attempts)

    async def _playbook(self, execution: Execution) -> Playbook:
        known = self._playbooks.get(execution.catalog_id)
        if known is not None:
            self._playbooks.move_to_end(execution.catalog_id)
            return known
        scope = Scope(tenant_id=execution.tenant_id, organization_id=execution.organization_id)
        source = await self._catalog.get(scope, catalog_id=execution.catalog_id)
        playbook, _ = parse_playbook(source.content)
        self._playbooks[execution.catalog_id] = playbook
        if len(self._playbooks) > _KEPT_PLAYBOOKS:
            self._playbooks.popitem(last=False)
        return playbook
