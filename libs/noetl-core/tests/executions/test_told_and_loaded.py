"""Whatever a control expression reads: from what events tell it gets the same as from the data, or nothing at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from noetl_core.executions.assignments import Assigned
from noetl_core.executions.names import LOADED, arc_names
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution, Step, StepStatus
from noetl_core.loops.state import LOOP_REFERENCE
from noetl_core.playbook.expressions import TemplateFailed, ValueWithheld, render
from noetl_core.playbook.selection import control_paths, select_scalars
from noetl_core.playbook.validate import parse_playbook

EXPRESSIONS = 400
KEYS = ("a", "b", "data", "result", "rows", "items", "0", "results", "status", "error", "count", "stats")
PLACES = (*KEYS, "1", "2", "-1")
SCALARS = (None, True, False, 0, 1, 5, "", "x", "no", "long" * 300)
ROOTS = ("output", "output.data", "s", "s.data", "s.result", "result", "steps.s", "event.payload", "steps['s'].data")
USES = (
    *("{}", "{} is defined", "{} | length", "{} | default('D')", "{} | list", "{} is none", "{} is mapping"),
    *("'a' in {}", "{}[:1]", "{} | first", "{} | tojson", "{} and 1", "not {}", "{} == 1", "{} > 0", "{} | string"),
    *("{} | int", "{} | map(attribute='a') | list", "{} is string", "{} | last", "{} or 'other'"),
)
WITHHELD = ("withheld", None)


def some_value(random: Random, depth: int = 0) -> Any:
    chance = random.random()
    if depth > 3 or chance < 0.35:
        return random.choice(SCALARS)
    if chance < 0.75:
        return {key: some_value(random, depth + 1) for key in random.sample(KEYS, random.randint(0, 4))}
    return [some_value(random, depth + 1) for _ in range(random.randint(0, 3))]


def some_expression(random: Random) -> str:
    chain = random.choice(ROOTS)
    for _ in range(random.randint(0, 3)):
        key = random.choice(PLACES)
        written = key if key.lstrip("-").isdigit() else repr(key)
        chain += f"[{written}]" if key == written or random.random() < 0.3 else f".{key}"
    return "{{ " + random.choice(USES).format(chain) + " }}"


def plan_of(expression: str, **step: Any) -> Plan:
    steps = [{"step": "s", "set": {"ctx.q": expression}, **step}]
    head = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "x"}}
    playbook, _ = parse_playbook(json.dumps({**head, "workflow": steps}))
    return Plan(playbook=playbook, workload={})


def answer(plan: Plan, expression: str, result: Mapping[str, Any]) -> tuple[str, Any]:
    execution = Execution(execution_id=1, steps={"s": Step(status=StepStatus.ACTIVE, result=result)})
    names = arc_names(execution, plan, step="s", result=result, assigned=Assigned())
    try:
        return "value", render(expression, names)
    except ValueWithheld:
        return WITHHELD
    except TemplateFailed:
        return "failure", None


@pytest.mark.parametrize("seed", range(3))
def test_the_result_of_a_call(seed: int) -> None:
    random = Random(seed)
    answered = 0
    for _ in range(EXPRESSIONS):
        value, expression = some_value(random), some_expression(random)
        plan = plan_of(expression)
        selected, unselected = select_scalars(value, control_paths(plan.playbook, "s"))
        context = {"select": selected, "unselected": list(unselected)}
        told = {"status": "ok", "reference": {"type": "object_store"}, "context": context}

        from_event = answer(plan, expression, told)
        if from_event != WITHHELD:
            answered += 1
            assert from_event == answer(plan, expression, {**told, LOADED: value}), (expression, value)
    assert answered > EXPRESSIONS // 3


@pytest.mark.parametrize("seed", range(3))
def test_the_result_of_a_loop(seed: int) -> None:
    random = Random(100 + seed)
    answered = 0
    for _ in range(EXPRESSIONS):
        results, expression = [some_value(random) for _ in range(3)], some_expression(random)
        plan = plan_of(expression, loop={"in": [1, 2, 3]})
        stats = {"total": 3, "success": 3, "failed": 0}
        value = {"results": results, "stats": stats, "count": 3, "status": "ok"}
        select = {"/status": "ok", "/count": 3, **{f"/stats/{name}": count for name, count in stats.items()}}
        context = {**stats, "status": "ok", "count": 3, "select": select, "unselected": ["/results"]}
        told = {"status": "ok", "reference": {"type": LOOP_REFERENCE, "ref_id": "x"}, "context": context}

        from_event = answer(plan, expression, told)
        if from_event != WITHHELD:
            answered += 1
            assert from_event == answer(plan, expression, {**told, LOADED: value}), (expression, value)
    assert answered > EXPRESSIONS // 5
