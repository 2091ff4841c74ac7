"""What passes by itself is waited for: no execution is set aside or forgotten because others are busy or away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from noetl_core import journal
from noetl_core.append import Appended, AppendRequest
from noetl_core.canonical import JsonObject, decode, encode
from noetl_core.errors import AlreadyTerminal, Corrupt, DeadlinePassed, NoetlError, Overloaded, Unavailable
from noetl_core.executions.events import ExecutionCancelled
from noetl_core.fold import State, fold
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import UNANSWERED
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.ports.steering import SteerAction
from noetl_core.recorded import Recorded
from noetl_core.values import replace
from noetl_planner.application import actor, setbacks
from noetl_planner.application.turn import TurnPlanner
from noetl_planner.application.turn_parts import Turn
from noetl_servicekit.health import Health
from noetl_testkit.planning import WORKER, Planning
from noetl_testkit.until import until

STEP = "workflow: [{step: a, tool: {kind: noop}}]\n"
STEPS = "workflow: [{step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}, {step: b, tool: {kind: noop}}]\n"
MORE_THAN_FAILURES_ALLOWED = len(setbacks.FAILURE_SECONDS) + 2


class Trouble:
    """So many calls from now on fail in a way that passes."""

    def __init__(self, error: type[NoetlError]) -> None:
        self._error = error
        self.left = 0

    def meet(self) -> None:
        if self.left:
            self.left -= 1
            raise self._error("for now")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries are not what is tested."""

    async def at_once(seconds: object, times: int, *, at_least: float = 0.0) -> None:
        return None

    monkeypatch.setattr(setbacks, "_pause", at_once)


@pytest.mark.parametrize("error", [Unavailable, DeadlinePassed, Overloaded])
async def test_an_execution_whose_decision_finds_no_room_in_the_log_waits_for_it(
    error: type[NoetlError], monkeypatch: pytest.MonkeyPatch
) -> None:
    planning, trouble = Planning(), Trouble(error)
    append = planning.log.append

    async def refused(request: AppendRequest) -> tuple[Appended, ...]:
        if request.fence is not None:
            trouble.meet()
        return await append(request)

    monkeypatch.setattr(planning.log, "append", refused)
    trouble.left = MORE_THAN_FAILURES_ALLOWED
    await planning.start(STEP)
    trouble.left = MORE_THAN_FAILURES_ALLOWED
    (asked,) = await planning.actors.claim(WORKER, [planning.issued("a")])
    assert asked.refusal == UNANSWERED, "whoever asks is told, and asks again"

    trouble.left = 0
    await planning.run("a")
    assert planning.types()[-1] == "playbook.completed"
    assert planning.actors.quarantined() == {}


async def test_whoever_asks_in_a_turn_that_falls_over_is_told_at_once_and_may_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = await Planning().start(STEP)
    plan = TurnPlanner.for_asks
    failures = iter([ValueError("nobody thought of this")])

    def falls_over(self: TurnPlanner, *arguments: Any) -> Turn:
        if (failure := next(failures, None)) is not None:
            raise failure
        return plan(self, *arguments)

    monkeypatch.setattr(TurnPlanner, "for_asks", falls_over)
    async with asyncio.timeout(5):  # far less than callers wait
        (asked,) = await planning.actors.claim(WORKER, [planning.issued("a")])
    assert asked.refusal == UNANSWERED

    await planning.run("a")
    assert planning.types()[-1] == "playbook.completed"
    assert planning.actors.quarantined() == {}


async def test_workers_are_woken_by_the_next_owner_although_its_first_look_at_the_plan_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is nothing to decide and nobody asks: only the plan is missing, and without it there are no hints."""
    planning, trouble = Planning(), Trouble(Unavailable)
    await planning.start(STEP)
    get = planning.payloads.get

    async def refused(ref: PayloadRef) -> bytes:
        trouble.meet()
        return await get(ref)

    monkeypatch.setattr(planning.payloads, "get", refused)
    trouble.left = 2
    await planning.replace_planner()

    await until(lambda: list(planning.actors.hints_for_claimable()))
    assert trouble.left == 0


async def test_a_turn_that_does_not_end_is_seen_in_the_health_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    planning, gate = Planning(), asyncio.Event()
    await planning.start(STEP)
    append = planning.log.append

    async def hangs(request: AppendRequest) -> tuple[Appended, ...]:
        await gate.wait()
        return await append(request)

    health = Health()
    health.check("turns", planning.actors.stuck)
    monkeypatch.setattr(planning.log, "append", hangs)
    monkeypatch.setattr(actor, "LONGEST_TURN_SECONDS", 0.0)
    claiming = asyncio.create_task(planning.claim("a"))

    await until(lambda: not health.report().ready)
    assert str(planning.execution_id) in health.report().checks[0].detail
    gate.set()
    await claiming
    await until(lambda: health.report().ready)


async def test_a_first_event_that_comes_again_after_the_end_does_not_bring_the_execution_back() -> None:
    """Its decision is in the log, word for word; whoever took that for its own would believe to be at the head."""
    planning = await Planning().start(STEP)
    await planning.run("a")

    def is_let_go() -> bool:
        planning.actors.let_go_of_ended()
        return planning.actors.known_version(planning.execution_id) == 0

    await until(is_let_go)
    log = planning.log.streams[planning.execution_id].events

    planning.actors.take(planning.execution_id, log[0])

    await until(lambda: planning.actors.known_version(planning.execution_id) == len(log))
    with pytest.raises(AlreadyTerminal):
        await planning.actors.steer(planning.execution_id, SteerAction.RESUME, by="ada", reason="")


async def test_an_event_that_comes_while_the_log_is_being_read_needs_nobody_to_tell_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is later than the page that is on its way; nothing else comes after it that would wake the execution."""
    planning = await Planning().start(STEP)
    read, meanwhile = planning.log.read, [ExecutionCancelled(reason="", cancelled_by="ada")]

    async def read_slowly(scope: Scope | None, execution_id: int, *, from_version: int, limit: int) -> EventPage:
        page = await read(scope, execution_id, from_version=from_version, limit=limit)
        while meanwhile:
            await planning.append(meanwhile.pop(), key="execution/end")
        return page

    monkeypatch.setattr(planning.log, "read", read_slowly)
    await planning.replace_planner()

    await until(lambda: planning.actors.known_version(planning.execution_id) == len(planning.events()))
    assert planning.types()[-1] == "execution.cancelled"


@pytest.mark.parametrize("page", [1, 2, 500])
@pytest.mark.parametrize("event_type", ["playbook.initialized", "command.completed", "step.exit"])
@pytest.mark.parametrize("cannot_be", ["read", "folded"])
async def test_a_bad_event_is_never_passed_over_and_the_execution_goes_on_once_it_is_mended(
    cannot_be: str, event_type: str, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planning = await Planning().start(STEPS)
    await planning.run("a")
    head, place = len(planning.events()), planning.types().index(event_type) + 1
    read = planning.log.read

    async def read_spoilt(scope: Scope | None, execution_id: int, *, from_version: int, limit: int) -> EventPage:
        found = await read(scope, execution_id, from_version=from_version, limit=min(limit, page))
        if cannot_be == "folded":
            return found
        events = [
            one._replace(body=encode({**body_of(one.body), "meta": 7})) if one.stream_version == place else one
            for one in found.events
        ]
        return replace(found, events=tuple(events))

    def fold_spoilt(state: State, event: Recorded) -> State:
        if cannot_be == "folded" and event.stream_version == place:
            raise Corrupt("it says what cannot be")
        return fold(state, event)

    monkeypatch.setattr(setbacks, "QUARANTINE_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(planning.log, "read", read_spoilt)
        patch.setattr(journal, "fold", fold_spoilt)
        await planning.replace_planner()
        await until(planning.actors.quarantined)
        for _ in range(2):  # nor is it when it is tried again
            planning.actors.retry_quarantined()
            await until(planning.actors.quarantined)
        assert planning.actors._actors[planning.execution_id].state.stream_version < place
        assert len(planning.events()) == head, "nothing is decided on what came before it"

    planning.actors.retry_quarantined()
    await planning.run("b")
    assert planning.types()[-1] == "playbook.completed"
    assert planning.actors.quarantined() == {}


def body_of(spelt: bytes) -> JsonObject:
    body = decode(spelt)
    assert isinstance(body, dict)
    return body
