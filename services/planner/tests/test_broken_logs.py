"""What a planner does with a log that it cannot read, cannot fold or sees only a part of: it decides nothing on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from noetl_core import journal
from noetl_core.append import Appended, AppendRequest, StreamAppend
from noetl_core.canonical import decode, encode
from noetl_core.catalog import to_draft
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt
from noetl_core.executions.events import CtxUpdated
from noetl_core.fold import State, fold
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.recorded import Recorded
from noetl_core.values import replace
from noetl_planner.application import actor, setbacks
from noetl_testkit.planning import WORKER, Planning, ok
from noetl_testkit.until import until

STEP = "workflow: [{step: a, tool: {kind: noop}}]\n"
STEPS = "workflow: [{step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}, {step: b, tool: {kind: noop}}]\n"
TWO_AT_ONCE = """
workflow:
- {step: each, loop: {in: [1, 2], iterator: item, spec: {mode: parallel, max_in_flight: 2}}, tool: {kind: noop}}
"""
BRANCHES = """
workflow:
- {step: s, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: c}]}}
- {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
- {step: c, tool: {kind: noop}}
- {step: b, tool: {kind: noop}}
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries are not what is tested."""

    async def at_once(seconds: object, times: int, *, at_least: float = 0.0) -> None:
        return None

    monkeypatch.setattr(setbacks, "_pause", at_once)
    monkeypatch.setattr(setbacks, "QUARANTINE_SECONDS", 0.0)


class Race:
    """Somebody else's event comes before the next append of the planner, and cannot be folded."""

    def __init__(self, planning: Planning, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = 0
        append = planning.log.append

        async def append_after_another(request: AppendRequest) -> tuple[Appended, ...]:
            if request.fence is not None and not self.place:
                self.place = len(planning.events()) + 1
                other = to_draft(CtxUpdated(step="a", values={"x": 1}), idempotency_key="other/1")
                stream = StreamAppend(execution_id=planning.execution_id, drafts=(other,))
                await append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))
            return await append(request)

        def fold_spoilt(state: State, event: Recorded) -> State:
            if self.place and event.stream_version == self.place:
                raise Corrupt("it says what cannot be")
            return fold(state, event)

        monkeypatch.setattr(planning.log, "append", append_after_another)
        monkeypatch.setattr(journal, "fold", fold_spoilt)


def spoil(
    planning: Planning, monkeypatch: pytest.MonkeyPatch, *, place: int, holds: Callable[[], bool] = lambda: True
) -> None:
    """One event cannot be read, as long as this holds when its page is."""
    read = planning.log.read

    def spoilt(event: StoredEvent) -> StoredEvent:
        body = decode(event.body)
        assert isinstance(body, dict)
        return event._replace(body=encode({**body, "meta": 7}))

    async def read_spoilt(scope: Scope | None, execution_id: int, *, from_version: int, limit: int) -> EventPage:
        found = await read(scope, execution_id, from_version=from_version, limit=limit)
        if not any(event.stream_version == place for event in found.events) or not holds():
            return found
        return replace(
            found, events=tuple(spoilt(event) if event.stream_version == place else event for event in found.events)
        )

    monkeypatch.setattr(planning.log, "read", read_spoilt)


@pytest.mark.parametrize("what", ["claim", "complete"])
async def test_nothing_is_appended_behind_an_event_that_came_by_a_lost_race_and_cannot_be_folded(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planning = await Planning().start(TWO_AT_ONCE)
    keys = planning.all_issued("each")
    if what == "complete":
        await planning.actors.claim(WORKER, keys)
    with monkeypatch.context() as patch:
        race = Race(planning, patch)
        asked = (
            [planning.actors.claim(WORKER, keys)]
            if what == "claim"
            else [planning.actors.complete(WORKER, key, ok(), wants_next=False) for key in keys]
        )
        await asyncio.gather(*asked, return_exceptions=True)
        await until(planning.actors.quarantined)
        assert len(planning.events()) == race.place

    planning.actors.retry_quarantined()
    await planning.run_all("each")
    assert planning.types()[-1] == "playbook.completed"


async def test_a_decision_is_of_its_cause_although_an_event_before_it_could_not_be_folded_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = await Planning().start(STEPS)
    command = await planning.claim("a")
    with monkeypatch.context() as patch:
        Race(planning, patch)
        await asyncio.gather(
            planning.actors.heartbeat(WORKER, [command.key]),
            planning.actors.complete(WORKER, command.key, ok(), wants_next=False),
            return_exceptions=True,
        )
        await until(planning.actors.quarantined)

    planning.actors.retry_quarantined()
    await planning.actors.complete(WORKER, command.key, ok(), wants_next=False)
    await planning.run("b")

    assert planning.types()[-1] == "playbook.completed"
    assert planning.entered() == ["a", "b"]
    completed = [event for event in planning.events() if event.envelope.event_type == "command.completed"]
    entered = [event for event in planning.events() if event.envelope.event_type == "step.enter"]
    assert entered[1].decided_through == completed[0].stream_version


@pytest.mark.parametrize("place", [1, 2])
async def test_an_execution_that_was_set_aside_is_not_taken_for_one_that_is_over(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planning = await Planning().start(STEP)
    with monkeypatch.context() as patch:
        spoil(planning, patch, place=place)
        await planning.replace_planner()
        await until(planning.actors.quarantined)
        planning.actors.let_go_of_ended()
        assert planning.actors.quarantined()

    planning.actors.retry_quarantined()
    await planning.run("a")
    assert planning.types()[-1] == "playbook.completed"


async def test_claims_that_stand_before_an_event_that_cannot_be_read_at_first_are_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = await Planning().start(TWO_AT_ONCE)
    first, _ = planning.all_issued("each")
    await planning.actors.claim(WORKER, [first])
    await planning.actors.heartbeat(WORKER, [first])
    tries = iter([True])
    spoil(
        planning,
        monkeypatch,
        place=planning.types().index("command.heartbeat") + 1,
        holds=lambda: next(tries, False),
    )

    await planning.replace_planner()
    await until(lambda: planning.actors.known_version(planning.execution_id) == len(planning.events()))

    given = await planning.actors.wait_for_commands(WORKER, room=1, held=[], seconds=5.0)
    assert first in [one.key for one in given]


class Split:
    """A decision that another planner appended behind the next cause, which it did not come to decide.

    Both results were appended alone, one after the other; so the log has: cause, cause, decision of the first.
    """

    def __init__(self, planning: Planning, decision: list[StoredEvent]) -> None:
        self.planning = planning
        self.decision = decision

    @classmethod
    async def of(cls, monkeypatch: pytest.MonkeyPatch) -> Split:
        planning = await Planning().start(BRANCHES)
        await planning.run("s")
        keys = [planning.issued("a"), planning.issued("c")]
        for step in ("a", "c"):
            await planning.claim(step)
        append, decided = planning.log.append, list[Appended]()

        async def append_once(request: AppendRequest) -> tuple[Appended, ...]:
            decides = any(draft.meta.get("decided_through") for one in request.streams for draft in one.drafts)
            if request.fence is not None and decides:
                if decided:
                    await asyncio.Event().wait()  # until it is stopped
                decided.extend(outcome := await append(request))
                return outcome
            return await append(request)

        with monkeypatch.context() as patch:
            patch.setattr(planning.log, "append", append_once)
            patch.setattr(actor, "MAX_LOST_RACES", 0)
            await asyncio.gather(*(planning.actors.complete(WORKER, key, ok(), wants_next=False) for key in keys))
            await until(lambda: bool(decided))
            await planning.actors.stop()
        decision = [outcome.event for outcome in decided]
        assert len(decision) > 1
        assert planning.events()[decision[0].stream_version - 1].decided_through < decision[0].stream_version - 2
        return cls(planning, decision)

    async def goes_on(self) -> None:
        """As it would have, had nobody cut anything."""
        planning = self.planning
        await until(lambda: planning.actors.known_version(planning.execution_id) == len(planning.events()))
        assert planning.actors.quarantined() == {}
        assert planning.types()[-1] != "playbook.completed", "b is about to run"
        await planning.run("b")
        await until(lambda: planning.types()[-1] == "playbook.completed")
        assert sorted(planning.entered()) == ["a", "b", "c", "s"]


@pytest.mark.parametrize("seen", [1, 2, 100])
async def test_a_decision_that_a_page_cuts_in_two_is_folded_whole_before_what_stands_between(
    seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = await Split.of(monkeypatch)
    planning, last_seen = split.planning, split.decision[0].stream_version + seen - 1
    read = planning.log.read

    async def read_cut(scope: Scope | None, execution_id: int, *, from_version: int, limit: int) -> EventPage:
        bound = last_seen - from_version + 1 if from_version <= last_seen else limit
        return await read(scope, execution_id, from_version=from_version, limit=min(limit, bound))

    monkeypatch.setattr(planning.log, "read", read_cut)
    planning.actors = planning.planner()
    planning.actors.expect(planning.execution_id, len(planning.events()), terminal=False)

    await split.goes_on()


async def test_a_decision_of_which_the_bus_brings_a_part_is_folded_whole_before_what_stands_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = await Split.of(monkeypatch)
    planning, first = split.planning, split.decision[0].stream_version
    page = await planning.log.read(None, planning.execution_id, from_version=1, limit=500)
    planning.actors = planning.planner()

    for event in page.events[:first]:
        planning.actors.take(planning.execution_id, event)

    await split.goes_on()
