"""Items of a task's loop that wait for children: the pipeline is parked, and what has ended does not run again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonValue, decode, encode
from noetl_core.children.state import ParkedCall, StartingCall
from noetl_core.errors import AlreadyTerminal, NoetlError
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionView
from noetl_servicekit.stored_values import StoredValues
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.child_calls import ChildCalls
from noetl_worker.application.outcome import Outcome
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
class World:
    """An api whose children double their `n` and fail on 0, and workers that know nothing but what was stored."""

    tasks: str
    payloads: InMemoryPayloadStore = field(default_factory=InMemoryPayloadStore)
    children: dict[str, int] = field(default_factory=dict)
    given: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    given_by_tools: JsonValue = None
    now: float = 1000.0
    trouble: NoetlError | None = None

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
        assert parent_call is not None
        if self.trouble is not None:
            raise self.trouble
        if parent_call.call_id not in self.children:
            self.children[parent_call.call_id] = len(self.given)
            self.given.append((payload or {})["n"])
        return Child(execution_id=100 + self.children[parent_call.call_id], path=path)

    async def get(self, scope: Scope | None, execution_id: int, *, min_version: int = 0) -> ExecutionView:
        self.read.append(execution_id - 100)
        n = self.given[execution_id - 100]
        ref = await self.payloads.put(
            tenant_id="t", organization_id="o", data=encode({"n": n * 2}), media_type="application/json"
        )
        return ExecutionView(
            execution_id=execution_id,
            tenant_id="t",
            organization_id="o",
            path="x",
            version=1,
            catalog_id="1",
            status="COMPLETED" if n else "FAILED",
            last_event_type="",
            last_node_name="",
            start_time=datetime(2026, 1, 1, tzinfo=UTC),
            state={"steps": {"r": {"result": {"status": "ok", "reference": {**ref.to_json(), "ref_id": "x"}}}}},
        )

    async def run(self, call: ToolCall) -> Outcome:
        self.tools.append(str(call.names["_task"]))
        return Outcome(data=self.given_by_tools)

    async def walk(
        self, park: PipelinePark | None = None, *, status: str = "completed", **variables: Any
    ) -> PipelineEnd | PipelinePark:
        """A worker takes the command up, from its beginning or from where it was parked."""
        head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n- step: s\n  tool:\n"
        playbook, _ = parse_playbook(head + self.tasks, supported=EVERYTHING)
        names = {**variables, "ctx": variables, "idempotency_key": "k"}
        command = COMMAND
        if park is not None:
            waiting = park.waiting
            stored = await self.payloads.put(
                tenant_id="t", organization_id="o", data=park.stand, media_type="application/json"
            )
            parked = ParkedCall(
                call_id=waiting.call_id,
                child_execution_id=waiting.child_execution_id,
                pipeline=stored,
                status=status,
            )
            command = replace(COMMAND, parked=parked)
        pipeline = Pipeline(
            self,
            sleep=_no_time,
            clock=lambda: self.now,
            children=ChildCalls(self, StoredValues(self.payloads, ArrowTables()), sleep=_no_time),
        )
        return await pipeline(command, playbook.steps["s"], names, stand=park.stand if park else None)

    async def park(self, park: PipelinePark | None = None, **how: Any) -> PipelinePark:
        end = await self.walk(park, **how)
        assert isinstance(end, PipelinePark)
        return end

    async def to_end(self, **variables: Any) -> tuple[PipelineEnd, list[int]]:
        """The end, and which children were waited for, in order."""
        end, parks = await self.walk(**variables), []
        while isinstance(end, PipelinePark):
            parks.append(int(end.waiting.child_execution_id) - 100)
            end = await self.walk(end, **variables)
        return end, parks


async def _no_time(seconds: float) -> None:
    await asyncio.sleep(0)


def looped(items: str = "[1, 2, 3]", spec: str = "", rest: str = "") -> str:
    return (
        "  - {name: a, kind: playbook, path: x, return_step: r, input: {n: '{{ iter.item }}'}, "
        f"loop: {{in: {items}, spec: {{{spec}}}}}{rest}}}\n"
    )


def numbers(end: PipelineEnd | PipelinePark) -> list[Any]:
    assert isinstance(end, PipelineEnd)
    data: Any = end.outcome.data
    return [slot.get("n") for slot in data["a"]["results"]]


def rule(when: str, then: str) -> str:
    return f", spec: {{policy: {{rules: [{{when: '{{{{ {when} }}}}', then: {{{then}}}}}]}}}}"


async def test_sequential_items_wait_one_after_the_other_and_see_earlier_writes() -> None:
    world = World(looped(rest=", set: {ctx.total: '{{ total + output.n }}'}"))

    park = await world.park(total=0)
    assert world.given == [1]
    end, parks = await world.to_end(total=0)

    assert park.waiting.child_execution_id == "100"
    assert (numbers(end), parks, world.given) == ([2, 4, 6], [0, 1, 2], [1, 2, 3])
    assert end.variables == {"total": 12}


@pytest.mark.parametrize(("spec", "at_once"), [("max_in_flight: 2, ", 2), ("", 3)])
async def test_parallel_items_wait_beside_each_other_as_many_as_may(spec: str, at_once: int) -> None:
    world = World(looped(spec=f"{spec}mode: parallel", rest=", set: {ctx.total: '{{ total + output.n }}'}"))

    park = await world.park(total=0)
    assert len(world.given) == at_once
    park = await world.park(park, total=0)
    assert len(world.given) == 3
    end = await world.walk(await world.park(park, total=0), total=0)

    assert numbers(end) == [2, 4, 6]
    assert isinstance(end, PipelineEnd)
    assert end.variables == {"total": 6}  # of the last one alone: they do not see each other's writes


async def test_what_has_ended_is_neither_run_nor_read_again() -> None:
    before, after = "  - {name: b, kind: noop}\n", "  - {name: c, kind: noop}\n"
    world = World(before + looped(spec="mode: parallel") + after)

    _, parks = await world.to_end()

    assert (world.tools, world.given, world.read, parks) == (["b", "c"], [1, 2, 3], [0, 1, 2], [0, 1, 2])


async def test_no_call_is_parked_on_twice() -> None:
    world = World(looped("'{{ range(20) | list }}'", "mode: parallel, max_in_flight: 3"))

    end, parks = await world.to_end()

    assert sorted(parks) == list(range(20))
    assert numbers(end) == [n * 2 for n in range(20)]


async def test_a_worker_that_dies_leaves_the_same_children_to_the_next_one() -> None:
    world = World(looped(spec="mode: parallel, max_in_flight: 2"))

    first = await world.park()
    again = await world.park()
    assert (first.waiting, decode(first.stand)) == (again.waiting, decode(again.stand))
    second = await world.park(first)
    third = await world.park(first)  # the one before has started the third item, and was not heard
    assert (second.waiting, second.stand) == (third.waiting, third.stand)

    assert world.given == [1, 2, 3]
    assert numbers(await world.walk(await world.park(third))) == [2, 4, 6]


async def test_a_retry_is_another_child_and_keeps_what_its_item_has_set() -> None:
    again = rule("output.data.failed and iter.tried is not defined", "do: retry, delay: 0, set: {iter.tried: 1}")
    world = World(looped("[0, 5]", "mode: parallel", again))

    end, parks = await world.to_end()

    assert (world.given, sorted(parks)) == ([0, 5, 0], [0, 1, 2])
    assert numbers(end) == [0, 10]


async def test_a_rule_makes_a_failure_of_one_item_and_the_others_go_on() -> None:
    world = World(looped("[0, 5]", rest=rule("output.data.failed", "do: fail")))

    end, _ = await world.to_end()

    assert end.outcome.error is not None
    assert end.outcome.error.code == "loop.budget_exceeded"
    data: Any = end.outcome.data
    assert data["a"]["stats"] == {"total": 2, "success": 1, "failed": 1}
    assert data["a"]["results"][0]["error"]["code"] == "POLICY_FAIL"


async def test_break_ends_only_its_item() -> None:
    later = "  - {name: c, kind: noop}\n"
    world = World(looped(rest=rule("output.data.n == 2", "do: break")) + later)

    end, _ = await world.to_end()

    assert not end.broke
    assert numbers(end) == [2, 4, 6]
    assert world.tools == ["c"]


async def test_the_time_of_a_call_counts_from_its_own_start() -> None:
    world = World(looped("[9, 1]", "mode: parallel", ", timeout: '{{ iter.item * 10 }}'"))

    park = await world.park()
    assert (park.waiting.child_execution_id, park.waiting.timeout_seconds) == ("101", 10.0)  # the first to be over
    world.now += 30
    park = await world.park(park, status="timeout")
    assert (park.waiting.child_execution_id, park.waiting.timeout_seconds) == ("100", 60.0)
    world.now += 600
    end = await world.walk(park)

    assert numbers(end) == [18, None]
    assert isinstance(end, PipelineEnd)
    data: Any = end.outcome.data
    assert data["a"]["results"][1]["error"]["code"] == "PLAYBOOK_TIMEOUT"


async def test_a_call_whose_time_went_by_meanwhile_is_parked_on_with_none_left() -> None:
    world = World(looped("[1, 2]", "mode: parallel", ", timeout: 10"))

    park = await world.park()
    world.now += 99
    park = await world.park(park)

    assert (park.waiting.child_execution_id, park.waiting.timeout_seconds) == ("101", 0.0)


async def test_items_are_those_of_the_beginning_whatever_they_set() -> None:
    world = World(looped("'{{ todo }}'", rest=", set: {ctx.todo: []}"))

    end, _ = await world.to_end(todo=[1, 2])

    assert numbers(end) == [2, 4]


async def test_runs_of_items_count_across_waits() -> None:
    again = rule("iter._index == 0 and _attempt < 3", "do: retry, attempts: 3, delay: 0")
    world = World(looped("[1, 2]", rest=again))

    end, parks = await world.to_end()

    assert parks == [0, 1, 2, 3]
    assert numbers(end) == [2, 4]


async def test_trouble_of_our_own_is_raised_as_what_it_is() -> None:
    world = World(looped(spec="mode: parallel"), trouble=AlreadyTerminal("over"))

    with pytest.raises(AlreadyTerminal):
        await world.walk()


async def test_what_cannot_be_stored_starts_no_child() -> None:
    world = World("  - {name: b, kind: noop}\n" + looped())
    world.given_by_tools = float("nan")

    end = await world.walk()

    assert isinstance(end, PipelineEnd)
    assert world.given == []
    data: Any = end.outcome.data
    assert data["a"]["results"][0]["error"]["code"] == "RESULT_NOT_JSON"
