"""The names that a step's templates see: variables, and the results of earlier steps that they speak of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from noetl_core.canonical import JsonObject, JsonValue, decode
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.model import Condition, KeychainEntry, Step, ToolKind, WorkbookTask
from noetl_core.playbook.references import referenced_paths
from noetl_core.playbook.views import DataView, StepView
from noetl_core.ports.commands import GrantedCommand
from noetl_core.ports.payloads import PayloadStore


class StepNames:
    """Loads what is referred to, and nothing else: other results stay where they are."""

    def __init__(self, payloads: PayloadStore) -> None:
        self._payloads = payloads

    async def __call__(
        self,
        command: GrantedCommand,
        step: Step,
        workbook: Mapping[str, WorkbookTask],
        keychain: Mapping[str, KeychainEntry] | None = None,
    ) -> dict[str, object]:
        """Names for one call; raises `NotFound` (REFERENCE_NOT_AVAILABLE) when a referenced result is gone."""
        wanted = _wanted_steps(command, step, workbook, keychain or {})
        variables, values = await asyncio.gather(
            self._variables(command), asyncio.gather(*(self._result(command.results[name]) for name in wanted))
        )
        results = dict(zip(wanted, values, strict=True))
        views = {name: StepView(value) for name, value in results.items()}
        execution_id = str(command.key.execution_id)
        cause = results.get(command.cause_step)
        return {
            "result": DataView(cause) if cause is not None else None,
            **variables,
            **views,
            "steps": views,
            "ctx": variables,
            "workload": variables,
            "execution_id": execution_id,
            "catalog_id": command.catalog_id,
            "job": {"uuid": execution_id, "id": execution_id, "execution_id": execution_id},
            "idempotency_key": command.idempotency_key,
            "_attempt": command.attempt,
        }

    async def _variables(self, command: GrantedCommand) -> JsonObject:
        """The workload, and over it what was set since the start."""
        workload: JsonValue = {}
        if command.workload is not None:
            workload = decode(await self._payloads.get(command.workload))
        stored = command.variables.refs
        values = await asyncio.gather(*(self._payloads.get(ref) for ref in stored.values()))
        return {
            **(workload if isinstance(workload, dict) else {}),
            **command.variables.values,
            **{name: decode(value) for name, value in zip(stored, values, strict=True)},
        }

    async def _result(self, result: Mapping[str, Any]) -> JsonValue:
        reference = result.get("reference")
        if not reference:  # Nobody could store it: a failure that the planner found has only its error.
            error = (result.get("context") or {}).get("error")
            return {"status": "error", "error": error} if error else None
        ref = PayloadRef(
            uri=reference["uri"],
            sha256=reference["sha256"],
            media_type=reference["media_type"],
            bytes=reference["bytes"],
        )
        return decode(await self._payloads.get(ref))


def _wanted_steps(
    command: GrantedCommand,
    step: Step,
    workbook: Mapping[str, WorkbookTask],
    keychain: Mapping[str, KeychainEntry],
) -> list[str]:
    """Steps that the templates name; all of them where the names cannot be told in advance."""
    names = {
        name
        for text in _texts([*(entry.config for entry in keychain.values())])
        for path in referenced_paths(text)
        for name in path[:2]
    }
    for text in _texts([*_templates(step, workbook)]):
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


def _templates(step: Step, workbook: Mapping[str, WorkbookTask]) -> Iterator[object]:
    """Everything that is rendered on the worker while the step runs."""
    yield step.input
    calls_workbook = any(task.tool.kind == ToolKind.WORKBOOK for task in step.tasks)
    called = [entry.tool for entry in workbook.values()] if calls_workbook else []
    for tool in [*(task.tool for task in step.tasks), *called]:
        yield from (tool.input, tool.config, tool.auth, tool.timeout_template)
        if tool.paginate is not None:
            yield from (tool.paginate.start, tool.paginate.size, tool.paginate.max_pages)
            yield _as_template(tool.paginate.stop_when)
        if tool.rate_limit is not None:
            yield from (tool.rate_limit.key, tool.rate_limit.rate, tool.rate_limit.burst)
        yield from (assignment.value for assignment in tool.set)
        for rule in tool.rules:
            yield _as_template(rule.when)
            yield from (assignment.value for assignment in rule.then.set)


def _as_template(condition: Condition) -> Condition:
    """A condition may be written without its braces."""
    return f"{{{{ {condition} }}}}" if isinstance(condition, str) and "{{" not in condition else condition


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
