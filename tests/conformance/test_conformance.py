"""Every rule that this release implements, shown by a playbook of its own on the real stack."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from noetl_testkit.conformance import Came, Case, load_cases, run_all
from noetl_testkit.local_stack import local_stack

CASES = load_cases(Path(__file__).parent / "cases")


@pytest.fixture(scope="module")
def outcomes() -> Mapping[str, Came | BaseException]:
    with local_stack({}) as stack:
        return asyncio.run(run_all(CASES, stack.endpoint, stack.home.root / "payloads"))


def test_names_of_cases_are_unique_and_each_names_its_rule() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.rule.startswith("§") for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_language_means_what_it_says(case: Case, outcomes: Mapping[str, Came | BaseException]) -> None:
    came = outcomes[case.name]
    assert isinstance(came, Came), repr(came)
    expect = dict(case.expect)
    if "refused" in expect:
        found = [[problem.code.removeprefix("playbook."), problem.line] for problem in came.problems]
        assert found == expect["refused"]
        return
    assert not came.problems, came.problems
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
    for step, result in expect.pop("results", {}).items():
        assert came.results.get(step) == result, step
    assert not expect, f"nothing checks {sorted(expect)}"
