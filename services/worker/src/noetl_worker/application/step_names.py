"""The names that a step's templates see: variables, and the results of earlier steps that they speak of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from noetl_core.canonical import JsonObject, JsonValue, decode
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.model import Step
from noetl_core.playbook.references import referenced_paths
from noetl_core.playbook.views import DataView, StepView
from noetl_core.ports.commands import GrantedCommand
from noetl_core.ports.payloads import PayloadStore


class StepNames:
    """Loads what is referred to, and nothing else: other results stay where they are."""

    def __init__(self, payloads: PayloadStore) -> None:
        self._payloads = payloads

    async def __call__(self, command: GrantedCommand, step: Step) -> dict[str, object]:
        """Names for one call; raises `NotFound` (REFERENCE_NOT_AVAILABLE) when a referenced result is gone."""
        wanted = _wanted_steps(command, step)
        workload, values = await asyncio.gather(
            self._workload(command), asyncio.gather(*(self._result(command.results[name]) for name in wanted))
        )
        results = dict(zip(wanted, values, strict=True))
        views = {name: StepView(value) for name, value in results.items()}
        execution_id = str(command.key.execution_id)
        cause = results.get(command.cause_step)
        return {
            "result": DataView(cause) if cause is not None else None,
            **workload,
            **views,
            "steps": views,
            "ctx": workload,
            "workload": workload,
            "execution_id": execution_id,
            "catalog_id": command.catalog_id,
            "job": {"uuid": execution_id, "id": execution_id, "execution_id": execution_id},
            "idempotency_key": command.idempotency_key,
            "_attempt": command.attempt,
        }

    async def _workload(self, command: GrantedCommand) -> JsonObject:
        if command.workload is None:
            return {}
        value = decode(await self._payloads.get(command.workload))
        return value if isinstance(value, dict) else {}

    async def _result(self, result: Mapping[str, Any]) -> JsonValue:
        reference = result.get("reference")
        if not reference:
            return None
        ref = PayloadRef(
            uri=reference["uri"],
            sha256=reference["sha256"],
            media_type=reference["media_type"],
            bytes=reference["bytes"],
        )
        return decode(await self._payloads.get(ref))


def _wanted_steps(command: GrantedCommand, step: Step) -> list[str]:
    """Steps that the templates name; all of them where the names cannot be told in advance."""
    names: set[str] = set()
    for text in _texts([step.merged_input(), dict(step.tool.config)]):
        if "context" in text or "main" in text:  # user code may ask for anything by name
            return list(command.results)
        for path in referenced_paths(text):
            if path[0] == "steps":
                if len(path) == 1:
                    return list(command.results)
                names.add(path[1])
            elif path[0] == "result":
                names.add(command.cause_step)
            names.add(path[0])
    return [name for name in command.results if name in names]


def _texts(value: object) -> Iterator[str]:
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            pending.extend(one.values())
        elif isinstance(one, list):
            pending.extend(one)
