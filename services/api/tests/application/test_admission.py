"""No more executions are open than planners have room for; those that others wait for come in all the same."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from noetl_api.application.admission import RETRY_SECONDS, Admission
from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.application.start_execution import StartExecution, StartRequest
from noetl_api.telemetry import ApiMetrics
from noetl_core.errors import Overloaded
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore

ADA = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.WRITER)
HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello}
workflow:
- {step: greet, tool: {kind: noop}}
"""


class Counted:
    """What the database would count."""

    def __init__(self) -> None:
        self.open = 0
        self.asked: list[int] = []

    async def count(self, *, at_most: int) -> int:
        self.asked.append(at_most)
        return min(self.open, at_most)


async def starting(counted: Counted, *, at_most: int) -> tuple[Admission, StartExecution, InMemoryEventLog]:
    log, catalog = InMemoryEventLog(), InMemoryCatalog()
    metrics = ApiMetrics(MetricSet())
    admission = Admission(counted, at_most=at_most, metrics=metrics)
    await catalog.register(Scope(tenant_id="acme", organization_id="ops"), HELLO)
    start = StartExecution(
        log=log,
        catalog=catalog,
        parsed=ParsedPlaybooks(),
        payloads=InMemoryPayloadStore(),
        next_id=log.next_id,
        clock=lambda: datetime.now(UTC),
        playbook_env={},
        metrics=metrics,
        let_in=admission,
    )
    return admission, start, log


async def test_starts_beyond_the_limit_change_nothing_and_say_when_to_come_again() -> None:
    counted = Counted()
    admission, start, log = await starting(counted, at_most=3)
    for _ in range(3):
        await start(ADA, None, StartRequest(path="hello"))

    with pytest.raises(Overloaded) as refusal:
        await start(ADA, None, StartRequest(path="hello"))

    assert refusal.value.retry_seconds == RETRY_SECONDS
    assert len(log.streams) == 3
    counted.open = 3
    await admission.measure()
    await admission.measure()
    with pytest.raises(Overloaded):
        await start(ADA, None, StartRequest(path="hello"))
    counted.open = 2
    await admission.measure()
    await start(ADA, None, StartRequest(path="hello"))
    assert set(counted.asked) == {3}, "counted no further than it matters"


async def test_an_execution_below_one_that_is_open_is_let_in() -> None:
    counted = Counted()
    _, start, log = await starting(counted, at_most=1)
    parent = await start(ADA, None, StartRequest(path="hello"))

    await start(ADA, None, StartRequest(path="hello", parent_execution_id=parent.execution_id))

    assert len(log.streams) == 2


async def test_what_starts_while_others_are_counted_is_not_forgotten() -> None:
    """A count may miss what is on its way into the log, whether it was let in before the count began or meanwhile."""
    counted = Counted()
    admission, start, _ = await starting(counted, at_most=2)
    await start(ADA, None, StartRequest(path="hello"))
    await admission.measure()
    await start(ADA, None, StartRequest(path="hello"))
    with pytest.raises(Overloaded):
        await start(ADA, None, StartRequest(path="hello"))
    counted.open = 2
    await admission.measure()
    with pytest.raises(Overloaded):
        await start(ADA, None, StartRequest(path="hello"))


async def test_without_a_limit_everybody_comes_in() -> None:
    _, start, log = await starting(Counted(), at_most=0)
    for _ in range(20):
        await start(ADA, None, StartRequest(path="hello"))
    assert len(log.streams) == 20
