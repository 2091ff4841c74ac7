"""The variables of an execution: its workload, and over it what was set since the start."""

from __future__ import annotations

from dataclasses import dataclass, field

from noetl_core.canonical import JsonObject, JsonValue, decode
from noetl_core.errors import Corrupt, NotFound
from noetl_core.payloads import PayloadRef
from noetl_core.ports.event_log import Scope
from noetl_core.ports.payloads import PayloadStore
from noetl_core.state_json import read_state
from noetl_servicekit.callers import Caller

from noetl_api.application.query_executions import QueryExecutions

MAX_SHOWN_BYTES = 1024 * 1024
"""Of values that are stored apart, all together; the rest is shown by reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVariables:
    """Values by name; those that are too large, or gone, are only named."""

    values: JsonObject = field(default_factory=dict)
    references: JsonObject = field(default_factory=dict)


class ReadVariables:
    """As `ctx` stands at the execution's head."""

    def __init__(self, *, executions: QueryExecutions, payloads: PayloadStore) -> None:
        self._executions = executions
        self._payloads = payloads

    async def __call__(self, caller: Caller, scope: Scope | None, execution_id: int) -> ShownVariables:
        """All variables that can be shown."""
        view = await self._executions.get(caller, scope, execution_id)
        try:
            execution = read_state(view.state).execution
        except Corrupt as exc:
            raise NotFound("state of execution", execution_id) from exc
        values: JsonObject = {}
        references: JsonObject = {}
        room = MAX_SHOWN_BYTES
        if execution.workload is not None:
            workload = await self._load(execution.workload, room)
            if isinstance(workload, dict):
                values |= workload
                room -= execution.workload.bytes
            else:
                references["workload"] = execution.workload.to_json()
        values |= dict(execution.variables)
        for name, reference in execution.variable_refs.items():
            ref = PayloadRef.from_json(dict(reference))
            loaded = await self._load(ref, room)
            if loaded is None:
                values.pop(name, None)
                references[name] = ref.to_json()
            else:
                values[name] = loaded
                room -= ref.bytes
        return ShownVariables(values=values, references=references)

    async def _load(self, ref: PayloadRef, room: int) -> JsonValue:
        if ref.bytes > room:
            return None
        try:
            return decode(await self._payloads.get(ref))
        except NotFound:
            return None
