"""Calls of other playbooks: started once, waited for without a worker, and gone on from anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import encode
from noetl_core.children.state import ParkedCall, StartingCall
from noetl_core.errors import AlreadyTerminal, InvalidPayload, NoetlError, NotFound, TooDeep, Unavailable
from noetl_core.playbook.model import Step
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionView
from noetl_servicekit.stored_values import StoredValues
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.child_calls import ChildCalls
from noetl_worker.application.outcome import Outcome, Printed
from noetl_worker.application.pipeline import Pipeline, PipelinePark
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.tool_call import ToolCall

COMMAND = GrantedCommand(
    key=CommandKey(execution_id=1, command_id="m"),
    tenant_id="t",
    organization_id="o",
    catalog_id="1",
    step="s",
    activation=1,
    attempt=1,
    lease_seconds=45,
    idempotency_key="1/s/1",
    issued_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    execution_id: int
    path: str


@dataclass(slots=True)
class Api:
    """Starts a child per call, and shows what the test says about it."""

    payloads: InMemoryPayloadStore = field(default_factory=InMemoryPayloadStore)
    started: dict[str, dict[str, Any]] = field(default_factory=dict)
    trouble: list[NoetlError] = field(default_factory=list)
    status: str = "COMPLETED"
    result: Any = None

    async def execute(
        self,
        scope: Scope | None,
        *,
        path: str = "",
        version: int = 0,
        payload: Mapping[str, Any] | None = None,
        parent_execution_id: int | None = None,
        parent_call: StartingCall | None = None,
    ) -> Child:
        if self.trouble:
            raise self.trouble.pop(0)
        assert scope == Scope(tenant_id="t", organization_id="o")
        assert parent_execution_id == 1
        assert parent_call is not None
        asked = {"path": path, "version": version, "payload": dict(payload or {}), "waits": parent_call.waits}
        self.started.setdefault(parent_call.call_id, asked)
        return Child(execution_id=100 + list(self.started).index(parent_call.call_id), path=path)

    async def get(self, scope: Scope | None, execution_id: int, *, min_version: int = 0) -> ExecutionView:
        if self.trouble:
            raise self.trouble.pop(0)
        state: dict[str, Any] = {}
        if self.result is not None:
            ref = await self.payloads.put(
                tenant_id="t", organization_id="o", data=encode(self.result), media_type="application/json"
            )
            state = {"steps": {"r": {"result": {"status": "ok", "reference": {**ref.to_json(), "ref_id": "x"}}}}}
        return ExecutionView(
            execution_id=execution_id,
            tenant_id="t",
            organization_id="o",
            path="x",
            version=1,
            catalog_id="1",
            status=self.status,
            last_event_type="",
            last_node_name="",
            start_time=datetime(2026, 1, 1, tzinfo=UTC),
            state=state,
        )


class Tools:
    """Every other tool: it counts its calls, and gives what it was told to give."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def run(self, call: ToolCall) -> Outcome:
        self.calls.append(str(call.names["_task"]))
        return Outcome(
            data=call.render(call.config.get("result")), printed=Printed(stdout=f"{call.names['_task']}\n", stderr="")
        )


def step_of(yaml: str) -> Step:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n- step: s\n"
    playbook, _ = parse_playbook(head + yaml, supported=EVERYTHING)
    return playbook.steps["s"]


async def _no_time(seconds: float) -> None:
    await asyncio.sleep(0)


def pipeline(api: Api, tools: Tools) -> Pipeline:
    return Pipeline(
        tools, sleep=_no_time, children=ChildCalls(api, StoredValues(api.payloads, ArrowTables()), sleep=_no_time)
    )


async def run(yaml: str, api: Api, tools: Tools | None = None, **names: Any) -> PipelineEnd | PipelinePark:
    return await pipeline(api, tools or Tools())(COMMAND, step_of(yaml), names)


async def resume(
    yaml: str, api: Api, park: PipelinePark, tools: Tools, *, status: str = "completed", **names: Any
) -> PipelineEnd | PipelinePark:
    """Another worker, which knows nothing but what was stored."""
    ref = await api.payloads.put(tenant_id="t", organization_id="o", data=park.stand, media_type="application/json")
    parked = ParkedCall(
        call_id=park.waiting.call_id,
        child_execution_id=park.waiting.child_execution_id,
        pipeline=ref,
        status=status,
    )
    stand = await api.payloads.get(parked.pipeline)
    return await pipeline(api, tools)(replace(COMMAND, parked=parked), step_of(yaml), names, stand=stand)


ONE = "  tool: {kind: playbook, path: x, input: {n: '{{ n }}'}, return_step: r, timeout: 7}\n"
MANY = """\
  tool:
  - {name: before, kind: noop, result: {x: 5}, set: {ctx.seen: "{{ output.x }}", mine: kept}}
  - {name: child, kind: playbook, path: x, input: {given: "{{ before.x }}"}, return_step: r}
  - {name: after, kind: noop, result: {sum: "{{ before.x + child.got }}", seen: "{{ seen }}", mine: "{{ mine }}"}}
"""


async def test_a_call_that_waits_parks_the_pipeline_and_goes_on_with_the_childs_result() -> None:
    api, tools = Api(result={"got": 1}), Tools()

    park = await run(ONE, api, tools, n=3)

    assert isinstance(park, PipelinePark)
    assert (park.waiting.child_execution_id, park.waiting.timeout_seconds) == ("100", 7.0)
    assert list(api.started.values()) == [{"path": "x", "version": 0, "payload": {"n": 3}, "waits": True}]
    end = await resume(ONE, api, park, tools, n=3)
    assert isinstance(end, PipelineEnd)
    assert end.outcome.data == {
        "got": 1,
        "status": "completed",
        "execution_id": "100",
        "path": "x",
        "completed": True,
        "failed": False,
    }
    assert len(api.started) == 1


async def test_the_time_to_wait_may_be_a_template() -> None:
    park = await run(ONE.replace("timeout: 7", "timeout: '{{ n * 2 }}'"), Api(), n=3)

    assert isinstance(park, PipelinePark)
    assert park.waiting.timeout_seconds == 6.0


async def test_a_pipeline_goes_on_on_another_worker_with_all_that_it_had() -> None:
    api, first, second = Api(result={"got": 2}), Tools(), Tools()

    park = await run(MANY, api, first)
    assert isinstance(park, PipelinePark)
    end = await resume(MANY, api, park, second)

    assert isinstance(end, PipelineEnd)
    assert (first.calls, second.calls) == (["before"], ["after"])
    data = end.outcome.data
    assert isinstance(data, dict)
    assert (data["sum"], data["seen"], data["mine"]) == (7, 5, "kept")
    assert data["before"] == {"x": 5}
    assert end.variables == {"seen": 5}
    assert [output.task for output in end.captured.first] == ["before", "after"]


async def test_an_attempt_that_begins_anew_finds_the_same_child_and_a_retry_another_one() -> None:
    api = Api(result={"again": True})
    yaml = ONE.replace("timeout: 7", "spec: {policy: {rules: [{when: '{{ output.data.again }}', then: {do: retry}}]}}")

    parks = [await run(yaml, api, n=1) for _ in range(2)]
    assert isinstance(parks[0], PipelinePark)
    retried = await resume(yaml, api, parks[0], Tools(), n=1)

    assert isinstance(parks[1], PipelinePark)
    assert parks[0].waiting == parks[1].waiting
    assert isinstance(retried, PipelinePark)
    assert retried.waiting.child_execution_id == "101"
    api.result = {"again": False}
    end = await resume(yaml, api, retried, Tools(), n=1)
    assert isinstance(end, PipelineEnd)
    assert end.outcome.meta.attempt == 2


async def test_without_a_step_to_return_nobody_waits() -> None:
    api = Api()

    end = await run("  tool: {kind: playbook, path: x, version: 4, payload: {a: 1}}\n", api)

    assert isinstance(end, PipelineEnd)
    assert end.outcome.data == {"status": "started", "execution_id": "100", "path": "x", "async": True}
    assert list(api.started.values()) == [{"path": "x", "version": 4, "payload": {"a": 1}, "waits": False}]


@pytest.mark.parametrize(
    ("status", "told"),
    [("FAILED", ("failed", False, True)), ("CANCELLED", ("cancelled", False, False))],
)
async def test_a_child_that_did_not_end_well_is_an_ok_outcome(status: str, told: tuple[str, bool, bool]) -> None:
    api = Api(status=status)
    park = await run(ONE, api, n=1)
    assert isinstance(park, PipelinePark)

    end = await resume(ONE, api, park, Tools(), status=status.lower(), n=1)

    assert isinstance(end, PipelineEnd)
    assert end.outcome.error is None
    data = end.outcome.data
    assert isinstance(data, dict)
    assert (data["status"], data["completed"], data["failed"]) == told


async def test_a_wait_that_took_too_long_is_an_error_that_rules_can_handle() -> None:
    api = Api()
    park = await run(ONE, api, n=1)
    assert isinstance(park, PipelinePark)

    end = await resume(ONE, api, park, Tools(), status="timeout", n=1)

    assert isinstance(end, PipelineEnd)
    error = end.outcome.error
    assert error is not None
    assert (error.kind, error.code, error.retryable) == ("timeout", "PLAYBOOK_TIMEOUT", True)


@pytest.mark.parametrize(
    ("refusal", "kind", "code"),
    [
        (NotFound("playbook", "x", code="catalog.not_found"), "not_found", "PLAYBOOK_NOT_FOUND"),
        (TooDeep("too deep"), "client_error", "PLAYBOOK_DEPTH"),
        (InvalidPayload("too large"), "client_error", "execution.invalid_payload"),
    ],
)
async def test_what_cannot_be_started_is_an_outcome(refusal: NoetlError, kind: str, code: str) -> None:
    end = await run(ONE, Api(trouble=[refusal]), n=1)

    assert isinstance(end, PipelineEnd)
    assert end.outcome.error is not None
    assert (end.outcome.error.kind, end.outcome.error.code) == (kind, code)


async def test_an_outage_is_waited_out_and_costs_no_second_run_of_earlier_tasks() -> None:
    api, tools = Api(trouble=[Unavailable("away")] * 7, result={"got": 1}), Tools()

    park = await run(MANY, api, tools)

    assert isinstance(park, PipelinePark)
    assert tools.calls == ["before"]
    api.trouble = [Unavailable("away")] * 3
    assert isinstance(await resume(MANY, api, park, tools), PipelineEnd)


async def test_a_parent_that_has_ended_stops_its_worker() -> None:
    with pytest.raises(AlreadyTerminal):
        await run(ONE, Api(trouble=[AlreadyTerminal("1")]), n=1)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ("path: '{{ 1 + none }}'", "TEMPLATE_ERROR"),
        ("path: '{{ n }}'", "request.invalid"),
        ("path: x, version: '{{ n * 0.5 }}'", "request.invalid"),
        ("path: x, payload: '{{ [n] }}'", "request.invalid"),
    ],
)
async def test_a_call_that_makes_no_sense_starts_nothing(config: str, code: str) -> None:
    api = Api()

    end = await run(f"  tool: {{kind: playbook, {config}, return_step: r}}\n", api, n=1)

    assert isinstance(end, PipelineEnd)
    assert end.outcome.error is not None
    assert end.outcome.error.code == code
    assert not api.started
