"""Children as api sees them: started once, told to their parents, ended with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from noetl_api.application.cancel_execution import CancelExecution
from noetl_api.application.playbooks import ParsedPlaybooks, RegisterPlaybook
from noetl_api.application.start_execution import Started, StartExecution, StartRequest
from noetl_api.telemetry import ApiMetrics
from noetl_core.append import END_KEY, Appended, AppendRequest
from noetl_core.canonical import decode
from noetl_core.children.state import StartingCall
from noetl_core.envelope import Draft
from noetl_core.errors import (
    AlreadyTerminal,
    InvalidInput,
    KeyTaken,
    NoetlError,
    NotFound,
    NotPermitted,
    TooDeep,
    Unavailable,
)
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import request
from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore

ADA = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.WRITER)
RIVAL = Caller(name="rival", tenant_id="rival", organization_id="ops", role=Role.WRITER)
WORKER = Caller(name="worker", tenant_id="*", organization_id="*", role=Role.SERVICE)
SCOPE = Scope(tenant_id="acme", organization_id="ops")
HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello}
workflow:
- {step: greet, tool: {kind: noop}}
"""
CALL = StartingCall(call_id="c1", command_id="m1", step="s", pool="default", waits=True)


class World:
    """The use cases around executions, over twins."""

    def __init__(self) -> None:
        self.log = InMemoryEventLog()
        self.catalog = InMemoryCatalog()
        self.register = RegisterPlaybook(self.catalog, next_id=self.log.next_id)
        self.cancel = CancelExecution(self.log, self.log)
        self.start = StartExecution(
            log=self.log,
            catalog=self.catalog,
            parsed=ParsedPlaybooks(),
            payloads=InMemoryPayloadStore(),
            next_id=self.log.next_id,
            clock=lambda: datetime.now(UTC),
            playbook_env={},
            metrics=ApiMetrics(MetricSet()),
        )

    async def root(self) -> int:
        return (await self.start(ADA, None, StartRequest(path="hello"))).execution_id

    async def call(self, parent: int, call: StartingCall = CALL, **fields: object) -> Started:
        asked = StartRequest(path="hello", parent_execution_id=parent, parent_call=call)
        return await self.start(WORKER, SCOPE, replace(asked, **fields))  # type: ignore[arg-type]

    async def child(self, parent: int, **fields: object) -> int:
        return (await self.call(parent, replace(CALL, call_id=f"{parent}/{self.log.next_id()}"), **fields)).execution_id

    def types(self, execution_id: int) -> list[str]:
        return [event.envelope().event_type for event in self.log.streams[execution_id].events]

    def is_over(self, *execution_ids: int) -> Sequence[bool]:
        return [self.log.streams[one].head.terminal for one in execution_ids]

    async def end(self, execution_id: int) -> None:
        await self.log.append(request(execution_id, Draft(event_type="playbook.completed", idempotency_key=END_KEY)))


@pytest.fixture
async def world() -> World:
    world = World()
    await world.register(ADA, None, HELLO)
    return world


async def test_a_child_is_told_to_its_parent_in_the_same_append(world: World) -> None:
    parent = await world.root()
    commits: list[int] = []
    world.log.on_commit.append(lambda events: commits.append(len(events)))

    child = (await world.call(parent)).execution_id

    assert commits == [2]
    told = world.log.streams[parent].events[-1].envelope()
    assert told.event_type == "child.started"
    assert (told.node_name, told.command_id) == ("s", "m1")
    assert told.meta == {"child_execution_id": str(child), "path": "hello", "call_id": "c1", "waits": True}
    first = world.log.streams[child].events[0].envelope()
    assert first.parent_execution_id == str(parent)
    assert first.meta["depth"] == 1
    assert first.meta["parent_call"] == {"call_id": "c1", "command_id": "m1", "step": "s", "pool": "default"}


async def test_every_start_of_one_call_is_one_child_whatever_it_says(world: World) -> None:
    parent = await world.root()

    first = await world.call(parent)
    again = await world.call(parent, replace(CALL, command_id="attempt two"), payload={"later": True})
    other = await world.call(parent, replace(CALL, call_id="c2"))

    assert (first.created, again.created, other.created) == (True, False, True)
    assert first.execution_id == again.execution_id != other.execution_id
    assert world.types(parent).count("child.started") == 2


async def test_a_hundred_starts_at_once_are_one_child(world: World) -> None:
    parent = await world.root()

    started = await asyncio.gather(*(world.call(parent) for _ in range(100)))

    assert len({one.execution_id for one in started}) == 1
    assert sum(one.created for one in started) == 1
    assert len(world.log.streams) == 2


async def test_nothing_starts_under_a_parent_that_has_ended_but_what_was_started_is_still_found(world: World) -> None:
    parent = await world.root()
    first = await world.call(parent)
    await world.end(parent)

    assert (await world.call(parent)).execution_id == first.execution_id
    with pytest.raises(AlreadyTerminal):
        await world.call(parent, replace(CALL, call_id="c2"))
    assert len(world.log.streams) == 2


async def test_a_start_key_of_somebody_else_is_never_told_to_a_parent(world: World) -> None:
    parent = await world.root()
    alone = await world.start(ADA, None, StartRequest(path="hello", start_key="k"))

    with pytest.raises(KeyTaken):
        await world.start(ADA, None, StartRequest(path="hello", start_key="k", parent_execution_id=parent))

    assert world.types(parent) == ["playbook.initialized"]
    asked = StartRequest(path="hello", start_key="k2", parent_execution_id=parent)
    first, again = [await world.start(ADA, None, asked) for _ in range(2)]
    assert first.execution_id == again.execution_id != alone.execution_id
    assert world.types(parent) == ["playbook.initialized", "child.started"]


@pytest.mark.parametrize(
    ("caller", "call", "key", "error"),
    [
        (ADA, CALL, "", NotPermitted),
        (WORKER, replace(CALL, call_id=""), "", InvalidInput),
        (WORKER, None, "call/c1", InvalidInput),
    ],
)
async def test_calls_are_for_services_and_their_keys_too(
    world: World, caller: Caller, call: StartingCall | None, key: str, error: type[NoetlError]
) -> None:
    parent = await world.root()
    asked = StartRequest(path="hello", parent_execution_id=parent, parent_call=call, start_key=key)

    with pytest.raises(error):
        await world.start(caller, SCOPE, asked)

    assert len(world.log.streams) == 1


async def test_a_call_without_a_parent_and_a_strangers_parent_are_refused(world: World) -> None:
    parent = await world.root()
    await world.register(RIVAL, None, HELLO)

    with pytest.raises(InvalidInput):
        await world.start(WORKER, SCOPE, StartRequest(path="hello", parent_call=CALL))
    with pytest.raises(NotFound):
        await world.start(RIVAL, None, StartRequest(path="hello", parent_execution_id=parent))


async def test_thirty_two_may_stand_above_one_and_no_more(world: World) -> None:
    last = await world.root()
    for _ in range(32):
        last = await world.child(last)

    with pytest.raises(TooDeep):
        await world.child(last)


async def test_cancel_ends_three_levels_also_below_one_that_has_ended(world: World) -> None:
    root = await world.root()
    child, done = await world.child(root), await world.child(root)
    grandchild, left_behind = await world.child(child), await world.child(done)
    await world.end(done)
    bystander = await world.root()
    world.log.hints.clear()

    cancelled = await world.cancel(ADA, None, root, reason="enough")

    assert cancelled.descendants == 3
    assert world.is_over(root, child, grandchild, left_behind, bystander) == [True, True, True, True, False]
    assert world.types(grandchild)[-1] == world.types(left_behind)[-1] == "execution.cancelled"
    stopped = [decode(hint.body) for hint in world.log.hints if hint.subject == "noetl.control.cancel"]
    assert {one["execution_id"] for one in stopped if isinstance(one, dict)} == {
        str(one) for one in (root, child, grandchild, left_behind)
    }
    assert "command.resumed" not in world.types(root), "a parent that has ended is not resumed"


async def test_without_cascade_children_go_on(world: World) -> None:
    root = await world.root()
    child = await world.child(root)

    await world.cancel(ADA, None, root, cascade=False)

    assert world.is_over(root, child) == [True, False]


async def test_a_cascade_that_was_interrupted_goes_on_when_it_is_repeated(world: World) -> None:
    root = await world.root()
    children = [await world.child(root) for _ in range(3)]

    class Away:
        async def open_descendants(self, execution_id: int, *, limit: int) -> tuple[int, ...]:
            raise Unavailable("the process was killed here")

        async def has_children(self, execution_id: int) -> bool:
            return True

    with pytest.raises(Unavailable):
        await CancelExecution(world.log, Away())(ADA, None, root)
    assert world.is_over(root, *children) == [True, False, False, False]

    assert (await world.cancel(ADA, None, root)).descendants == 3
    assert (await world.cancel(ADA, None, root)).descendants == 0
    assert all(world.is_over(*children))
    assert world.types(root)[-2:] == ["execution.cancelled", "execution.cascaded"]


async def test_one_that_ends_by_itself_meanwhile_does_not_keep_the_others(world: World) -> None:
    root = await world.root()
    children = [await world.child(root) for _ in range(3)]

    class Racing(InMemoryEventLog):
        async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
            if len(request.streams) == 3:
                await world.end(children[1])
            return await world.log.append(request)

        read = world.log.read

    cancelled = await CancelExecution(Racing(), world.log)(ADA, None, root)

    assert cancelled.descendants == 2
    assert [world.types(one)[-1] for one in children] == [
        "execution.cancelled", "playbook.completed", "execution.cancelled"
    ]  # fmt: skip


async def test_cancelling_a_child_resumes_the_call_that_waits_for_it_and_wakes_a_worker(world: World) -> None:
    parent = await world.root()
    child = (await world.call(parent)).execution_id
    world.log.hints.clear()

    await world.cancel(ADA, None, child)

    told = world.log.streams[parent].events[-1].envelope()
    assert told.event_type == "command.resumed"
    assert told.meta == {"call_id": "c1", "child_execution_id": str(child), "status": "cancelled"}
    (woken,) = [hint for hint in world.log.hints if hint.subject == "noetl.work.default.command"]
    assert decode(woken.body) == {"execution_id": str(parent), "command_id": "m1"}
    assert not world.log.streams[parent].head.terminal


async def test_a_child_can_be_cancelled_after_its_parent_has_ended(world: World) -> None:
    parent = await world.root()
    child = (await world.call(parent)).execution_id
    await world.end(parent)

    await world.cancel(ADA, None, child)

    assert world.types(child)[-1] == "execution.cancelled"
    assert world.types(parent)[-1] == "playbook.completed"


async def test_nobody_is_resumed_by_a_child_that_is_not_waited_for(world: World) -> None:
    parent = await world.root()
    child = (await world.call(parent, replace(CALL, waits=False))).execution_id

    await world.cancel(ADA, None, child)

    assert world.types(parent) == ["playbook.initialized", "child.started"]
