"""Conformance cases: playbooks as data, run all at the same time on one stack, and what came of each."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_cli.dev.endpoint import LocalEndpoint
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import CatalogClient, EventLogClient, ExecutionClient
from noetl_core.errors import PlaybookInvalid, Problem
from noetl_core.fold import State, empty, fold
from noetl_core.payloads import PayloadRef
from noetl_core.recorded import Recorded, record
from noetl_servicekit.loop_results import LoopResults, is_loop_reference
from noetl_servicekit.stored_values import StoredValues

AT_ONCE = 12

PURE_KINDS = frozenset({"noop", "playbook", "python", "workbook"})
NEEDS_OUTSIDE = ("timeout", "rate_limit", "keychain", "script:", "env.")
"""Words of a document that ask for more than what runs in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rule, a playbook that shows it, and what must come of it."""

    name: str
    rule: str
    document: str
    expect: Mapping[str, Any]
    others: Sequence[str] = ()
    """Playbooks that it calls."""
    payload: Mapping[str, Any] = field(default_factory=dict)
    is_pure: bool = False
    """Whether it needs nothing from outside: no network, no files, no time that passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What came of a case."""

    problems: Sequence[Problem] = ()
    warnings: Sequence[Problem] = ()
    state: State | None = None
    events: Sequence[Recorded] = ()
    results: Mapping[str, Any] = field(default_factory=dict)


def load_cases(folder: Path) -> list[Case]:
    """Every case of every file."""
    return [_case(path.stem, one) for path in sorted(folder.glob("*.yaml")) for one in yaml.safe_load(path.read_text())]


def _case(group: str, fields: Mapping[str, Any]) -> Case:
    name = f"{group}/{fields['name']}"
    document = fields["document"] if "document" in fields else _document(name, fields)
    others = [_document(path, one) for path, one in fields.get("others", {}).items()]
    return Case(
        name=name,
        rule=str(fields["rule"]),
        document=document,
        expect=fields["expect"],
        others=others,
        payload=fields.get("payload", {}),
        is_pure=all(map(_is_pure, [document, *others])),
    )


def _is_pure(document: str) -> bool:
    """A document that does not even parse is refused without I/O as well."""
    kinds = set(re.findall(r"\bkind: *['\"]?([A-Za-z_]+)", document)) - {"Playbook"}
    return kinds <= PURE_KINDS and not any(word in document for word in NEEDS_OUTSIDE)


def check(case: Case, came: Came) -> None:
    """Compare what came of a case with what its file expects."""
    expect = dict(case.expect)
    if "refused" in expect:
        assert _codes(came.problems) == expect["refused"]
        return
    assert not came.problems, came.problems
    if "warned" in expect:
        assert _codes(came.warnings) == expect.pop("warned")
    assert came.state is not None
    execution = came.state.execution
    assert (execution.status.value, execution.error) == (expect.pop("status", "COMPLETED"), execution.error)
    if "error" in expect:
        wanted = expect.pop("error")
        assert {key: (execution.error or {}).get(key) for key in wanted} == wanted
    named = {
        "entered": [e.envelope.node_name for e in came.events if e.envelope.event_type == "step.enter"],
        "skipped": [e.envelope.node_name for e in came.events if e.envelope.event_type == "step.skipped"],
        "variables": dict(execution.variables),
        "stored_variables": sorted(execution.variable_refs),
        "evaluated": [
            e.envelope.node_name
            for e in came.events
            if e.envelope.event_type == "command.issued" and "evaluation" in e.envelope.meta
        ],
    }
    for key, value in named.items():
        if key in expect:
            assert value == expect.pop(key)
    for event_type, nodes in expect.pop("nodes", {}).items():
        came_under = [e.envelope.node_name for e in came.events if e.envelope.event_type == event_type]
        assert came_under == nodes, event_type
    told = Counter(e.envelope.event_type for e in came.events)
    for event_type, count in expect.pop("events", {}).items():
        assert told[event_type] == count, event_type
    for step, result in expect.pop("results", {}).items():
        assert came.results.get(step) == result, step
    assert not expect, f"nothing checks {sorted(expect)}"


def _codes(problems: Sequence[Problem]) -> list[list[str | int | None]]:
    return [[problem.code.removeprefix("playbook."), problem.line] for problem in problems]


def _document(name: str, fields: Mapping[str, Any]) -> str:
    root = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": name}, **fields.get("root", {})}
    return yaml.safe_dump({**root, "workflow": fields["workflow"]}, sort_keys=False)


WEB = re.compile(r"\bWEB(?=/)")
"""What stands in documents for the address of a web server."""


async def run_all(
    cases: Sequence[Case], endpoint: LocalEndpoint, payloads: Path, *, web: str = "http://127.0.0.1:9"
) -> Mapping[str, Came | BaseException]:
    """What came of each case by name; a case that could not even be run has its error."""
    cases = [replace(case, document=WEB.sub(web, case.document)) for case in cases]
    gate = asyncio.Semaphore(AT_ONCE)
    async with open_channel(endpoint.address, token=endpoint.token) as channel:
        runner = _Runner(
            CatalogClient(channel),
            ExecutionClient(channel),
            EventLogClient(channel),
            StoredValues(DirectoryPayloadStore(payloads), ArrowTables()),
        )

        async def run(case: Case) -> Came | BaseException:
            async with gate:
                try:
                    return await asyncio.wait_for(runner(case), 180)
                except Exception as exc:
                    return exc

        ends = await asyncio.gather(*(run(case) for case in cases))
    return {case.name: end for case, end in zip(cases, ends, strict=True)}


@dataclass(frozen=True, slots=True)
class _Runner:
    catalog: CatalogClient
    executions: ExecutionClient
    log: EventLogClient
    values: StoredValues

    async def __call__(self, case: Case) -> Came:
        try:
            for other in case.others:
                await self.catalog.register(None, other)
            registered = await self.catalog.register(None, case.document)
        except PlaybookInvalid as refused:
            return Came(problems=refused.problems)
        started = await self.executions.execute(
            None, catalog_id=registered.entry.catalog_id, payload=dict(case.payload)
        )
        events: list[Recorded] = []
        state = empty(started.execution_id)
        async for batch in self.log.watch(None, started.execution_id):
            for stored in batch.events:
                events.append(record(stored))
                state = fold(state, events[-1])
        results = {
            name: await self._load(state.execution.execution_id, step.result)
            for name, step in state.execution.steps.items()
            if step.result and step.result.get("reference")
        }
        return Came(warnings=registered.warnings, state=state, events=events, results=results)

    async def _load(self, execution_id: int, result: Mapping[str, Any]) -> Any:
        reference = result["reference"]
        if is_loop_reference(reference):
            return await LoopResults(self.log, self.values)(None, execution_id, result)
        fields = {key: reference[key] for key in ("uri", "sha256", "media_type", "bytes")}
        return await self.values.get(PayloadRef(**fields))
