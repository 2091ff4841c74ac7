from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_api.application.cancel_execution import CancelExecution
from noetl_api.application.playbooks import FindPlaybooks, ParsedPlaybooks, RegisterPlaybook
from noetl_api.application.start_execution import Started, StartExecution, StartRequest, place_of
from noetl_api.telemetry import ApiMetrics
from noetl_core.append import END_KEY, Ahead, Appended, AppendRequest
from noetl_core.canonical import decode
from noetl_core.envelope import Draft, StoredEvent
from noetl_core.errors import (
    AlreadyTerminal,
    InvalidInput,
    InvalidPayload,
    KeyTaken,
    NoetlError,
    NotFound,
    NotPermitted,
    Overtaken,
    PlaybookInvalid,
    Unavailable,
)
from noetl_core.payloads import PayloadRef
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.event_log import history, request
from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore

ADA = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.WRITER)
RITA = Caller(name="rita", tenant_id="acme", organization_id="ops", role=Role.READER)
RIVAL = Caller(name="rival", tenant_id="rival", organization_id="ops", role=Role.WRITER)
SERVICE = Caller(name="service", tenant_id="*", organization_id="*", role=Role.SERVICE)
HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello}
workload: {who: world, me: "{{ execution_id }}"}
workflow:
- {step: greet, tool: {kind: noop}}
"""


class FullStore(InMemoryPayloadStore):
    """A payload store that takes nothing."""

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        raise Unavailable("no space left")


class PickyStore(InMemoryPayloadStore):
    """A payload store that does not take what has certain bytes in it."""

    refuses = b"\0"

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        if self.refuses in data:
            raise Unavailable("no space left for that")
        return await super().put(tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type)


class World:
    """The use cases around executions, over twins."""

    def __init__(self, payloads: InMemoryPayloadStore | None = None) -> None:
        self.log = InMemoryEventLog()
        self.is_overtaken = False
        self.noticed_before_commit = 0
        self.noticed: list[tuple[int, StoredEvent, bytes]] = []
        self.metrics = MetricSet()
        self.catalog = InMemoryCatalog()
        self.payloads = payloads or InMemoryPayloadStore()
        self.register = RegisterPlaybook(self.catalog, next_id=self.log.next_id)
        self.find = FindPlaybooks(self.catalog)
        self.cancel = CancelExecution(self.log, self.log)
        self.start = StartExecution(
            log=self.log,
            catalog=self.catalog,
            parsed=ParsedPlaybooks(),
            payloads=self.payloads,
            next_id=self.log.next_id,
            clock=lambda: datetime.now(UTC),
            playbook_env={},
            metrics=ApiMetrics(self.metrics),
            on_started=self._notice,
            append_ahead=self.append_ahead,
        )

    def _notice(self, *told: Any) -> None:
        self.noticed.append(told)
        self.noticed_before_commit += told[0] not in self.log.streams

    async def append_ahead(self, request: AppendRequest, ahead: Ahead) -> tuple[Appended, ...]:
        prepared, at = self.log.prepare(request), datetime.now(UTC)
        foreseen = self.log.foreseen(prepared, at=at)
        if foreseen is not None:
            ahead(foreseen)
            if self.is_overtaken:
                raise Overtaken("somebody was faster")
        (outcome,) = await self.log.commit([prepared], at=at)
        if isinstance(outcome, NoetlError):
            raise outcome
        return outcome


@pytest.fixture
async def world() -> World:
    world = World()
    await world.register(ADA, None, HELLO)
    return world


async def test_the_first_event_points_at_variables_that_are_stored(world: World) -> None:
    started = await world.start(ADA, None, StartRequest(path="hello", payload={"who": "Ada"}))

    (event,) = await history(world.log, started.execution_id)
    envelope = event.envelope()
    assert envelope.event_type == "playbook.initialized"
    assert (envelope.idempotency_key, envelope.producer) == ("execution/start", "urn:noetl:user:ada")
    assert envelope.payload_ref is not None
    assert decode(await world.payloads.get(envelope.payload_ref)) == {"who": "Ada", "me": str(started.execution_id)}


async def test_a_new_execution_is_told_on_once_with_its_variables(world: World) -> None:
    asked = StartRequest(path="hello", start_key="once")

    started = await world.start(ADA, None, asked)
    await world.start(ADA, None, asked)

    (event,) = await history(world.log, started.execution_id)
    ref = event.envelope().payload_ref
    assert ref is not None
    assert world.noticed == [(started.execution_id, event, await world.payloads.get(ref))]
    assert world.noticed_before_commit == 1


async def test_an_id_that_was_told_of_and_not_committed_is_never_used(world: World) -> None:
    world.is_overtaken = True

    started = await world.start(ADA, None, StartRequest(path="hello"))

    ((spent, _, _), (used, first, variables)) = world.noticed
    assert used == started.execution_id != spent
    assert list(world.log.streams) == [used]
    assert await history(world.log, used) == (first,)
    assert decode(variables) == {"who": "world", "me": str(used)}


async def test_a_start_is_told_of_in_the_name_of_its_own_call(world: World) -> None:
    """Whoever commits works for many: the task that tells began with another call."""
    told: list[str] = []
    start = world.start

    async def committed_elsewhere(request: AppendRequest, ahead: Ahead) -> tuple[Appended, ...]:
        return await asyncio.create_task(world.append_ahead(request, ahead), context=Context())

    start._append_ahead = committed_elsewhere
    start._on_started = lambda *_: told.append(name.get())
    name = ContextVar[str]("name")
    name.set("ada's call")

    await start(ADA, None, StartRequest(path="hello"))

    assert told == ["ada's call"]


async def test_children_are_told_of_when_they_exist(world: World) -> None:
    parent = await world.start(ADA, None, StartRequest(path="hello"))
    world.noticed_before_commit = 0

    child = await world.start(ADA, None, StartRequest(path="hello", parent_execution_id=parent.execution_id))

    assert world.noticed[-1][0] == child.execution_id
    assert world.noticed_before_commit == 0


async def test_a_new_version_counts_at_once_although_the_last_one_was_expected(world: World) -> None:
    async def variables(started: Started) -> object:
        (event,) = await history(world.log, started.execution_id)
        ref = event.envelope().payload_ref
        assert ref is not None
        return decode(await world.payloads.get(ref))

    asked = StartRequest(path="hello")
    await world.start(ADA, None, asked)
    before = await world.start(ADA, None, asked)
    await world.register(ADA, None, HELLO.replace("who: world", "who: moon"))
    after = await world.start(ADA, None, asked)
    pinned = await world.start(ADA, None, replace(asked, version=1))

    assert [started.version for started in (before, after, pinned)] == [1, 2, 1]
    assert await variables(before) == {"who": "world", "me": str(before.execution_id)}
    assert await variables(after) == {"who": "moon", "me": str(after.execution_id)}
    assert await variables(pinned) == {"who": "world", "me": str(pinned.execution_id)}


def test_what_callers_write_beside_the_id_of_a_version_is_not_remembered() -> None:
    owner = Scope(tenant_id="acme", organization_id="ops")
    named = StartRequest(path="hello", version=2)

    by_id = {place_of(owner, StartRequest(path=f"any path {n}", version=n, catalog_id="7")) for n in range(3)}

    assert by_id == {(owner, "", 0, "7")}
    assert place_of(owner, named) == (owner, "hello", 2, "")
    assert place_of(owner, replace(named, version=0)) != place_of(owner, named)


async def test_what_is_wrong_with_a_version_that_no_longer_counts_is_nobodys_trouble() -> None:
    store = PickyStore()
    world = World(store)
    await world.register(ADA, None, HELLO)
    asked = StartRequest(path="hello")
    await world.start(ADA, None, asked)
    store.refuses = b"world"
    with pytest.raises(Unavailable):
        await world.start(ADA, None, asked)

    await world.register(ADA, None, HELLO.replace("who: world", "who: moon"))
    started = await world.start(ADA, None, asked)

    assert started.version == 2


async def test_nothing_starts_when_the_variables_cannot_be_stored() -> None:
    world = World(FullStore())
    await world.register(ADA, None, HELLO)

    with pytest.raises(Unavailable):
        await world.start(ADA, None, StartRequest(path="hello"))

    assert world.log.streams == {}


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (StartRequest(), InvalidInput),
        (StartRequest(path="hello", version=-1), InvalidInput),
        (StartRequest(path="nowhere"), NotFound),
        (StartRequest(path="hello", version=2), NotFound),
        (StartRequest(catalog_id="12345"), NotFound),
        (StartRequest(path="hello", start_key="k" * 256), InvalidInput),
        (StartRequest(path="hello", payload={"n": 2**60}), InvalidPayload),
        (StartRequest(path="hello", payload={"x": "x" * 1_048_576}), InvalidPayload),
        (StartRequest(path="hello", parent_execution_id=12345), NotFound),
    ],
)
async def test_a_start_that_cannot_be_is_refused_before_anything_is_stored(
    world: World, asked: StartRequest, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await world.start(ADA, None, asked)

    assert world.payloads.objects == {}
    assert world.log.streams == {}


async def test_a_repeated_start_is_the_same_execution_although_its_variables_would_differ(world: World) -> None:
    asked = StartRequest(path="hello", start_key="order/1")

    first = await world.start(ADA, None, asked)
    await world.register(ADA, None, HELLO + "# a newer version\n")
    again = await world.start(ADA, None, asked)

    assert (first.created, again.created) == (True, False)
    assert world.metrics.value("noetl_api_executions_started_total") == 1
    assert (again.execution_id, again.version) == (first.execution_id, 1)
    with pytest.raises(KeyTaken):
        await world.start(ADA, None, StartRequest(path="hello", start_key="order/1", payload={"n": 1}))


async def test_a_child_names_its_parent(world: World) -> None:
    parent = await world.start(ADA, None, StartRequest(path="hello"))

    child = await world.start(ADA, None, StartRequest(path="hello", parent_execution_id=parent.execution_id))

    (event,) = await history(world.log, child.execution_id)
    assert event.envelope().parent_execution_id == str(parent.execution_id)


async def test_readers_do_not_write_and_strangers_do_not_see(world: World) -> None:
    started = await world.start(ADA, None, StartRequest(path="hello"))

    for attempt in (
        world.start(RITA, None, StartRequest(path="hello")),
        world.cancel(RITA, None, started.execution_id),
        world.register(RITA, None, HELLO),
    ):
        with pytest.raises(NotPermitted):
            await attempt
    for attempt in (
        world.start(RIVAL, None, StartRequest(path="hello")),
        world.cancel(RIVAL, None, started.execution_id),
    ):
        with pytest.raises(NotFound):
            await attempt


async def test_a_playbook_that_cannot_run_is_not_stored(world: World) -> None:
    with pytest.raises(PlaybookInvalid):
        await world.register(ADA, None, HELLO.replace("noop", "teleport"))

    assert len((await world.find.versions(ADA, None, "hello")).entries) == 1


async def test_cancelling_hints_and_can_be_repeated(world: World) -> None:
    started = await world.start(ADA, None, StartRequest(path="hello"))

    versions = [
        (await world.cancel(caller, None, started.execution_id)).stream_version for caller in (ADA, ADA, SERVICE)
    ]

    assert versions == [2, 2, 2]
    assert [(hint.subject, hint.body) for hint in world.log.hints] == [
        ("noetl.control.cancel", b'{"execution_id":"%d"}' % started.execution_id)
    ]


async def test_a_cancellation_is_found_behind_what_may_follow_it(world: World) -> None:
    started = await world.start(ADA, None, StartRequest(path="hello"))
    await world.cancel(ADA, None, started.execution_id)
    await world.log.append(
        request(started.execution_id, Draft(event_type="execution.retired", idempotency_key="r", meta={"manifest": ""}))
    )

    assert (await world.cancel(ADA, None, started.execution_id)).stream_version == 2


async def test_what_ended_otherwise_is_not_cancelled(world: World) -> None:
    started = await world.start(ADA, None, StartRequest(path="hello"))
    await world.log.append(
        request(started.execution_id, Draft(event_type="playbook.completed", idempotency_key=END_KEY))
    )

    with pytest.raises(AlreadyTerminal):
        await world.cancel(ADA, None, started.execution_id)


async def test_a_version_is_parsed_once() -> None:
    catalog, parsed = InMemoryCatalog(), ParsedPlaybooks(capacity=1)
    world = World()
    await RegisterPlaybook(catalog, next_id=world.log.next_id)(ADA, None, HELLO)
    find = FindPlaybooks(catalog)
    source = await find.get(ADA, None, path="hello")

    first = await parsed.of(source)

    assert await parsed.of(source) is first
    await RegisterPlaybook(catalog, next_id=world.log.next_id)(ADA, None, HELLO + "# two\n")
    await parsed.of(await find.get(ADA, None, path="hello"))
    assert await parsed.of(source) is not first
