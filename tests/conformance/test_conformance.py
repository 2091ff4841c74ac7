"""Every rule that this release implements, shown by a playbook of its own on the real stack, and without I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from noetl_testkit.conformance import Came, Case, check, load_cases, run_all
from noetl_testkit.in_memory_runtime import InMemoryRuntime
from noetl_testkit.local_stack import local_stack
from noetl_testkit.reaching import unreached
from noetl_testkit.web_server import web_server

CASES = load_cases(Path(__file__).parent / "cases")
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def outcomes() -> Mapping[str, Came | BaseException]:
    with web_server() as web, local_stack({"NOETL_SCRIPT_ROOT": str(SCRIPTS)}) as stack:
        return asyncio.run(run_all(CASES, stack.endpoint, stack.home.root / "payloads", web=web))


def test_names_of_cases_are_unique_and_each_names_its_rule() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.rule.startswith("§") for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_language_means_what_it_says(case: Case, outcomes: Mapping[str, Came | BaseException]) -> None:
    came = outcomes[case.name]
    assert isinstance(came, Came), repr(came)
    check(case, came)


@pytest.mark.parametrize("case", [case for case in CASES if case.is_pure], ids=lambda case: case.name)
async def test_and_means_the_same_without_any_io(case: Case) -> None:
    """Through the planner's turn and the worker's pipeline in memory; then `decide` alone repeats each decision."""
    runtime = InMemoryRuntime()
    came = await runtime.run(case)
    check(case, came)
    if came.problems:
        return
    assert unreached(runtime.log, runtime.payloads) == [], "a collector would delete what was stored"
    for cause, decided, decided_again in await runtime.decided_again(came.events):
        assert decided_again == decided, cause
