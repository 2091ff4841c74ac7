"""The chain of a result goes on in the execution from which a redriven one has taken it over."""

from __future__ import annotations

import pytest
from noetl_api.application.trace_result import TraceResult
from noetl_core.append import StreamStart
from noetl_core.errors import NotFound
from noetl_core.locator import result_locator
from noetl_core.ports.lineage import MAX_TRACE
from noetl_servicekit.callers import Caller, Role
from noetl_testkit.compliance.event_log import ACME, RIVAL, new_id, note, request
from noetl_testkit.compliance.lineage import told
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.lineage import InMemoryLineage

RITA = Caller(name="rita", tenant_id="acme", organization_id="ops", role=Role.READER)


@pytest.fixture
def log() -> InMemoryEventLog:
    return InMemoryEventLog()


def ref(execution_id: int, step: str) -> str:
    return str(result_locator(execution_id=execution_id, step=step, result_id="0123456789abcdef"))


async def executed(log: InMemoryEventLog, *steps: str, parent: str | None = None) -> int:
    """Each step made its result from the one before it, the first from that of another execution."""
    execution_id = new_id()
    drafts = []
    for number, step in enumerate(steps):
        drafts.append(told(number, (step, ref(execution_id, step), parent)))
        parent = ref(execution_id, step)
    await log.append(request(execution_id, note("start"), *drafts, scope=ACME, start=StreamStart()))
    return execution_id


async def test_what_a_redriven_execution_took_over_is_traced_to_its_beginning(log: InMemoryEventLog) -> None:
    first = await executed(log, "load", "clean", "report")
    second = await executed(log, "report", parent=ref(first, "clean"))
    third = await executed(log, "send", parent=ref(second, "report"))

    trace = await TraceResult(InMemoryLineage(log))(RITA, None, third, "send")

    assert [result.ref_id for result in trace.results] == [
        ref(third, "send"),
        ref(second, "report"),
        ref(first, "clean"),
        ref(first, "load"),
    ]
    assert not trace.truncated


@pytest.mark.parametrize("parent", ["noetl://execution/99/result/gone/0123456789abcdef", "what is this", "noetl://x"])
async def test_a_chain_ends_where_nothing_more_is_known(log: InMemoryEventLog, parent: str) -> None:
    execution_id = await executed(log, "a", "b", parent=parent)

    trace = await TraceResult(InMemoryLineage(log))(RITA, None, execution_id, "b")

    assert [result.step for result in trace.results] == ["b", "a"]
    with pytest.raises(NotFound):
        await TraceResult(InMemoryLineage(log))(RITA, None, execution_id, "c")


async def test_results_of_others_are_not_shown(log: InMemoryEventLog) -> None:
    theirs = new_id()
    draft = told(0, ("secret", ref(theirs, "secret"), None))
    await log.append(request(theirs, note("start"), draft, scope=RIVAL, start=StreamStart()))
    mine = await executed(log, "a", parent=ref(theirs, "secret"))

    trace = await TraceResult(InMemoryLineage(log))(RITA, None, mine, "a")

    assert [result.step for result in trace.results] == ["a"]


async def test_chains_that_lead_round_in_circles_end(log: InMemoryEventLog) -> None:
    first, second = new_id(), new_id()
    for own, other in ((first, second), (second, first)):
        draft = told(0, ("a", ref(own, "a"), ref(other, "a")))
        await log.append(request(own, note("start"), draft, scope=ACME, start=StreamStart()))

    trace = await TraceResult(InMemoryLineage(log))(RITA, None, first, "a")

    assert (len(trace.results), trace.truncated) == (MAX_TRACE, True)
