"""Loops of tasks: items run in place, each in a scope of its own, and give one result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_core.errors import PlaybookInvalid
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_worker.application.iteration import Iteration
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.pipeline import Pipeline
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.tool_call import ToolCall

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n- step: s\n  tool:\n"


class Doubling:
    """Doubles its input `n`, fails on 0, and knows how many calls ran at once."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.keys: list[object] = []

    async def run(self, call: ToolCall) -> Outcome:
        self.running += 1
        self.most = max(self.most, self.running)
        self.keys.append(call.names.get("idempotency_key"))
        n: Any = call.rendered_input().get("n")
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        if n == 0:
            return Outcome.failed(kind=ErrorKind.UNKNOWN, code="ZERO", message="no")
        return Outcome(data={"n": n * 2})


def command() -> GrantedCommand:
    return GrantedCommand(
        key=CommandKey(execution_id=1, command_id="c"),
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        step="s",
        activation=1,
        attempt=1,
        lease_seconds=45,
        idempotency_key="k",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


async def run(
    tasks: str, tool: Doubling | None = None, *, iteration: Iteration | None = None, **variables: Any
) -> PipelineEnd:
    playbook, _ = parse_playbook(HEAD + tasks, supported=EVERYTHING)
    names: Mapping[str, object] = {**variables, "ctx": variables, "idempotency_key": "k"}
    pipeline = Pipeline(tool or Doubling(), max_task_runs=50)
    end = await pipeline(command(), playbook.steps["s"], names, iteration=iteration)
    assert isinstance(end, PipelineEnd)
    return end


def of_task(end: PipelineEnd, label: str) -> Any:
    data: Any = end.outcome.data
    return data[label]


TASK = "  - {name: a, kind: noop, input: {n: '{{ iter.item }}'}, loop: {in: ITEMS, spec: {SPEC}}REST}\n"


def task(items: str = "[1, 2, 3]", spec: str = "", rest: str = "") -> str:
    return TASK.replace("ITEMS", items).replace("SPEC", spec).replace("REST", rest)


async def test_results_stand_in_index_order_with_their_counts() -> None:
    end = await run(task())
    assert of_task(end, "a") == {
        "results": [{"n": 2}, {"n": 4}, {"n": 6}],
        "stats": {"total": 3, "success": 3, "failed": 0},
        "count": 3,
        "status": "ok",
    }


@pytest.mark.parametrize(("spec", "most"), [("", 1), ("mode: parallel, max_in_flight: 2", 2), ("mode: parallel", 3)])
async def test_as_many_items_run_at_once_as_may(spec: str, most: int) -> None:
    tool = Doubling()
    await run(task(spec=spec), tool)
    assert tool.most == most


async def test_each_item_has_an_idempotency_key_of_its_own() -> None:
    tool = Doubling()
    await run(task("[1, 2]"), tool)
    assert tool.keys == ["k/a/0", "k/a/1"]


async def test_a_failed_item_fails_the_task_after_all_have_run() -> None:
    tool = Doubling()
    end = await run(task("[0, 1]"), tool)
    assert len(tool.keys) == 2
    assert end.outcome.error is not None
    assert end.outcome.error.code == "loop.budget_exceeded"
    slot = of_task(end, "a")["results"][0]
    assert (slot["status"], slot["error"]["code"]) == ("error", "ZERO")


async def test_rules_are_those_of_each_item() -> None:
    rules = ", spec: {policy: {rules: [{when: '{{ output.error is defined }}', then: {do: continue}}]}}"
    end = await run(task("[0, 1]", rest=rules))
    assert end.outcome.error is None
    assert of_task(end, "a")["status"] == "ok"


async def test_break_ends_only_its_item_and_later_tasks_run() -> None:
    rules = ", spec: {policy: {rules: [{when: '{{ output.n == 2 }}', then: {do: break}}]}}"
    end = await run(task("[1, 2]", rest=rules) + "  - {name: b, kind: noop, input: {n: '{{ a.count }}'}}\n")
    assert not end.broke
    assert of_task(end, "b") == {"n": 4}


@pytest.mark.parametrize(("spec", "total"), [("", 6), ("mode: parallel, max_in_flight: 1", 3)])
async def test_sequential_items_see_earlier_writes_and_parallel_ones_do_not(spec: str, total: int) -> None:
    end = await run(task(spec=spec, rest=", set: {ctx.total: '{{ total + iter.item }}'}"), total=0)
    assert end.variables == {"total": total}


async def test_what_is_set_for_an_item_is_gone_with_it() -> None:
    later = "  - {name: b, kind: noop, input: {n: '{{ 1 if iter is defined else 5 }}'}}\n"
    end = await run(task("[1]", rest=", set: {iter.x: 1}") + later)
    assert of_task(end, "b") == {"n": 10}


async def test_an_item_sees_the_item_around_it() -> None:
    outer = Iteration(iterator="outer", value=10, index=0, total=1)
    inner = "  - {name: a, kind: noop, input: {n: '{{ iter.outer + inner }}'}, loop: {in: [1], iterator: inner}}\n"
    end = await run(inner, iteration=outer)
    assert of_task(end, "a")["results"] == [{"n": 22}]


@pytest.mark.parametrize(
    ("items", "code"), [("'{{ 5 }}'", "loop.invalid_collection"), ("'{{ 1 / 0 }}'", "template.error")]
)
async def test_a_loop_that_cannot_run_fails_the_pipeline(items: str, code: str) -> None:
    end = await run(task(items))
    assert end.outcome.error is not None
    assert end.outcome.error.code == code


async def test_items_count_as_runs_of_tasks() -> None:
    tool = Doubling()
    end = await run(task("'{{ range(60) | list }}'"), tool)
    assert len(tool.keys) == 50
    assert end.outcome.error is not None


def test_an_item_cannot_jump_away() -> None:
    jump = ", spec: {policy: {rules: [{else: {then: {do: jump, to: b}}}]}}"
    with pytest.raises(PlaybookInvalid) as refused:
        parse_playbook(HEAD + task(rest=jump) + "  - {name: b, kind: noop}\n", supported=EVERYTHING)
    assert [problem.code for problem in refused.value.problems] == ["playbook.invalid_field"]
