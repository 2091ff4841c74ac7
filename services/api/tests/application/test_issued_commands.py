"""Claims over HTTP: the planner decides, and every answer of its has a meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from noetl_api.application.commands import ClaimRefused, Delivery, IssuedCommands
from noetl_api.application.query_executions import QueryExecutions
from noetl_core.append import AppendRequest, StreamAppend, StreamStart
from noetl_core.commands.events import CommandIssued
from noetl_core.envelope import StoredEvent
from noetl_core.errors import InvalidInput, LeaseLost, NotFound, NotPermitted, Unavailable
from noetl_core.events import to_draft
from noetl_core.ports.commands import UNANSWERED, ClaimOutcome, CommandKey, Commands, GrantedCommand, Worker
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.planning import Planning, ok
from noetl_testkit.until import until

SERVICE = Caller(name="service", tenant_id="*", organization_id="*", role=Role.SERVICE)
ADA = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.ADMIN)
WORKER = Worker(worker_id="w")
EVENT_ID = 77


class OneEvent:
    """Finds one event, whatever it is asked for."""

    def __init__(self, event: StoredEvent) -> None:
        self._event = event

    async def find(self, scope: Scope | None, event_id: int) -> StoredEvent:
        return self._event


class AnsweringPlanner:
    """Answers every claim in one way."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.asked: list[CommandKey] = []

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        self.asked.extend(keys)
        return tuple(
            ClaimOutcome(key=key, refusal=self.refusal, command=None if self.refusal else granted(key)) for key in keys
        )


def granted(key: CommandKey) -> GrantedCommand:
    return GrantedCommand(
        key=key,
        tenant_id="acme",
        organization_id="ops",
        catalog_id="1",
        step="s",
        activation=1,
        attempt=1,
        lease_seconds=45,
        idempotency_key="k",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


async def commands(planner: AnsweringPlanner | None) -> IssuedCommands:
    log = InMemoryEventLog()
    issued = to_draft(CommandIssued(command_id="c1", step="s", activation=1, attempt=1), idempotency_key="k")
    stream = StreamAppend(execution_id=5, drafts=(issued,), start=StreamStart())
    (appended,) = await log.append(AppendRequest(tenant_id="acme", organization_id="ops", streams=(stream,)))
    executions = cast("QueryExecutions", cast("Any", None))  # a claim by event id needs none
    return IssuedCommands(
        events=OneEvent(appended.event), executions=executions, planner=cast("Commands | None", planner)
    )


async def test_a_claim_goes_to_the_planner_by_the_event_that_issued_the_command() -> None:
    planner = AnsweringPlanner()

    command = await (await commands(planner)).claim(SERVICE, None, str(EVENT_ID), WORKER, execution_id=None)

    assert planner.asked == [CommandKey(execution_id=5, command_id="c1")]
    assert command.key.command_id == "c1"


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        ("command.held", ClaimRefused),
        ("command.closed", ClaimRefused),
        ("execution.already_terminal", ClaimRefused),
        ("command.not_found", NotFound),
        (UNANSWERED, Unavailable),
    ],
)
async def test_each_refusal_is_an_error_of_its_own(refusal: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        await (await commands(AnsweringPlanner(refusal))).claim(SERVICE, None, "77", WORKER, execution_id=None)

    if error is ClaimRefused:
        assert cast("ClaimRefused", raised.value).code == refusal


async def test_only_services_claim_and_only_with_a_name_and_a_planner() -> None:
    with pytest.raises(NotPermitted):
        await (await commands(AnsweringPlanner())).claim(ADA, None, "77", WORKER, execution_id=None)
    with pytest.raises(InvalidInput):
        await (await commands(AnsweringPlanner())).claim(SERVICE, None, "77", Worker(worker_id=""), execution_id=None)
    with pytest.raises(Unavailable):
        await (await commands(None)).claim(SERVICE, None, "77", WORKER, execution_id=None)


async def test_a_worker_over_http_claims_keeps_and_completes_a_command_and_goes_on_with_the_next() -> None:
    planning = await Planning().start("""
workflow:
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: "{{ n == 2 }}"}]}}
- {step: b, tool: {kind: noop}}
""")
    await until(lambda: len(planning.events()) >= 4)
    issued = planning.log.streams[planning.execution_id].events[3]
    executions = cast("QueryExecutions", cast("Any", None))
    over_http = IssuedCommands(events=OneEvent(issued), executions=executions, planner=planning.actors)
    delivery = Delivery(worker=WORKER, result=ok(n=1), variables={"n": 2}, wants_next=True)

    await over_http.claim(SERVICE, None, "1", WORKER, execution_id=None)
    await over_http.heartbeat(SERVICE, None, "1", WORKER, execution_id=None)
    done = await over_http.complete(SERVICE, None, "1", delivery, execution_id=None)
    again = await over_http.complete(SERVICE, None, "1", delivery, execution_id=None)

    assert done.next is not None
    assert done.next.step == "b"
    assert again == done
    assert planning.state.execution.variables == {"n": 2}
    with pytest.raises(ClaimRefused) as lost:
        await over_http.heartbeat(SERVICE, None, "1", WORKER, execution_id=None)
    assert lost.value.code == "command.lease_lost"
    with pytest.raises(LeaseLost):
        other = replace(delivery, worker=Worker(worker_id="other"))
        await over_http.complete(SERVICE, None, "1", other, execution_id=None)
    with pytest.raises(InvalidInput):
        shapeless = replace(delivery, result={"rows": [1]})
        await over_http.complete(SERVICE, None, "1", shapeless, execution_id=None)
    with pytest.raises(NotPermitted):
        await over_http.complete(ADA, None, "1", delivery, execution_id=None)
    await planning.actors.stop()
