"""Brings together what routing needs besides the log; both parts never change."""

from __future__ import annotations

from noetl_core.canonical import JsonObject, decode, sha256_hex
from noetl_core.errors import Corrupt
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.payloads import PayloadRef
from noetl_core.ports.payloads import PayloadStore
from noetl_core.steering.state import Inheritance
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks


class LoadPlan:
    """Loads the pinned playbook from the catalog and the variables from the payload store."""

    def __init__(self, playbooks: PinnedPlaybooks, payloads: PayloadStore, *, max_attempts: int) -> None:
        self._playbooks = playbooks
        self._payloads = payloads
        self._max_attempts = max_attempts

    async def __call__(self, execution: Execution, *, told: bytes = b"") -> Plan:
        """The plan of an execution whose first event has been folded; `told` are perhaps the bytes of its variables."""
        playbook = await self._playbooks.get(
            tenant_id=execution.tenant_id,
            organization_id=execution.organization_id,
            catalog_id=execution.catalog_id,
        )
        workload: JsonObject = {}
        if execution.workload is not None:
            value = decode(await self._bytes_of(execution.workload, told))
            if not isinstance(value, dict):
                raise Corrupt(f"the variables of execution {execution.execution_id} are not an object")
            workload = value
        return Plan(
            playbook=playbook,
            workload=workload,
            inheritance=await self._inheritance(execution),
            max_attempts=self._max_attempts,
        )

    async def _bytes_of(self, ref: PayloadRef, told: bytes) -> bytes:
        """What was told is as good as what is stored if its digest says so."""
        return told if told and sha256_hex(told) == ref.sha256 else await self._payloads.get(ref)

    async def _inheritance(self, execution: Execution) -> Inheritance | None:
        """What a redriven execution begins with; needed once, so it is not asked for after that."""
        if execution.inherited is None:
            return None
        value = decode(await self._payloads.get(execution.inherited))
        if not isinstance(value, dict):
            raise Corrupt(f"what execution {execution.execution_id} takes over is not an object")
        return Inheritance.from_json(value)
