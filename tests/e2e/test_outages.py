"""NATS, PostgreSQL and the object store go away in the middle of a run, thirty seconds each: it comes to the same."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nats
import pytest
from nats.js.api import ConsumerConfig, DeliverPolicy
from noetl_cli.dev.nats import NatsNode
from noetl_cli.dev.sql import fetch_value
from noetl_cli.exits import ExitCode
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import EventLogClient, ExecutionClient
from noetl_contracts.messages import unpack_events
from noetl_contracts.room import when_there_is_room
from noetl_contracts.subjects import EVENTS_STREAM
from noetl_core.append import AppendRequest, StreamAppend
from noetl_core.envelope import Draft, StoredEvent
from noetl_core.errors import Overloaded
from noetl_core.likeness.places import Places
from noetl_core.recorded import record
from noetl_core.stages.events import FrameAbandoned, FrameCommitted, FrameEvent, FrameHeartbeat
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack, local_stack
from noetl_testkit.object_stores import StoppableStore, stoppable_s3_server

OUTAGE_SECONDS = 30.0
SERVICES = ("api", "planner", "projector", "outbox-publisher", "reaper", "worker")
SETTINGS = {
    "NOETL_SHARD_LEASE_SEC": "4",
    "NOETL_SHARD_HEARTBEAT_SEC": "1",
    "NOETL_COMMAND_LEASE_SECONDS": "3",
    "NOETL_HEARTBEAT_SECONDS": "1",
    "NOETL_HEAD_POLL_SECONDS": "1",
    "NOETL_REHINT_SECONDS": "1",
    "NOETL_REAPER_INTERVAL_SECONDS": "1",
    "NOETL_COMMAND_MAX_ATTEMPTS": "50",
    "NOETL_MAX_OPEN_EXECUTIONS": "20",
}

CHILD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: below, path: tests/outage/below}
workload: {number: 0}
workflow:
- {step: double, tool: {kind: python, input: {number: "{{ number }}"}, code: "result = {'twice': 2 * number}"}}
"""
GATE = """\
- step: gate
  tool:
    kind: python
    input: {directory: "{{ directory }}"}
    code: |
      import pathlib, time
      while not (pathlib.Path(directory) / "go").exists():
          time.sleep(0.05)
      result = {"open": True}
"""
NOTED = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: noted, path: tests/outage/noted}}
workload: {{directory: /nowhere}}
workflow:
{GATE}"""
ITEMS = 16
# An outage begins while its items and rows run; it is over before the gate opens.
PLAYBOOK = (
    """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: outage, path: tests/outage/all}
workload: {directory: /nowhere}
workflow:
- step: begin
  tool: {kind: noop}
  next: {spec: {mode: inclusive}, arcs: [{step: items}, {step: rows}]}
- step: items
  loop: {in: "{{ range(16) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
  tool:
    kind: python
    input: {n: "{{ iter.n }}"}
    code: |
      import time
      time.sleep(0.3)
      print(n)
      result = {"n": n, "text": "x" * 70000}
  next: {arcs: [{step: gate}]}
- step: rows
  loop:
    in: "{{ range(40) | list }}"
    iterator: n
    spec:
      mode: parallel
      max_in_flight: 2
      engine: inline
      frame: {max_rows: 10, max_seconds: 600, lease_seconds: 5, heartbeat_seconds: 1, max_attempts: 50}
  tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "import time; time.sleep(0.15); result = {'square': n * n}"}
"""
    + GATE
    + """\
  next: {arcs: [{step: below}]}
- step: below
  tool: {kind: playbook, path: tests/outage/below, input: {number: "{{ items.results | length }}"}, return_step: double}
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stack, and the object store that it keeps its results in."""

    stack: LocalStack
    store: StoppableStore


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with stoppable_s3_server() as store:
        settings = {**SETTINGS, **store.environment, "NOETL_PAYLOAD_URL": f"{store.new_bucket()}/payloads"}
        with local_stack(settings) as stack:
            yield Place(stack=stack, store=store)


def started(stack: LocalStack, directory: Path) -> int:
    (directory / "all.yaml").write_text(PLAYBOOK)
    for name, document in {"below.yaml": CHILD, "noted.yaml": NOTED}.items():
        (directory / name).write_text(document)
        registered = stack.noetl("catalog", "register", str(directory / name))
        assert registered.code == 0, registered
    ran = stack.noetl(
        "run", str(directory / "all.yaml"), "--set", f"directory={directory}", "--no-follow", "-o", "json"
    )
    assert ran.code == 0, ran
    return int(ran.document["execution_id"])


def history(stack: LocalStack, execution_id: int) -> Sequence[StoredEvent]:
    async def read() -> list[StoredEvent]:
        async with open_channel(stack.endpoint.address, token=stack.endpoint.token) as channel:
            log, events = EventLogClient(channel), list[StoredEvent]()
            while True:
                page = await log.read(None, execution_id, from_version=len(events) + 1)
                events += page.events
                if len(events) >= page.head_version:
                    return events

    return asyncio.run(read())


BOOKKEEPING = ("checkpoint.", "command.heartbeat", "command.abandoned")
OF_ATTEMPTS = ("command.issued", "command.claimed", "command.started")
Account = Counter[tuple[object, ...]]
"""What happened to each step, item and row, and with which result; how often that was told."""


def account(events: Sequence[StoredEvent]) -> Account:
    """Without ids, times, heartbeats, checkpoints and attempts that were given up; frames by what they are made of."""
    recorded = [record(event) for event in events]
    places = Places(recorded)
    given_up = {one.envelope.command_id for one in recorded if one.envelope.event_type == "command.abandoned"}
    lost_frames = {(c.frame_id, c.attempt) for one in recorded if isinstance(c := one.content, FrameAbandoned)}
    told: Account = Counter()
    for one in recorded:
        envelope, content = one.envelope, one.content
        if isinstance(content, FrameCommitted):
            told.update(("row", envelope.node_name, row) for row in range(content.start, content.stop))
            told["rows", envelope.node_name, "failed"] += content.failed
        if isinstance(content, FrameEvent):
            if not isinstance(content, FrameHeartbeat) and (content.frame_id, content.attempt) not in lost_frames:
                told[envelope.event_type, places.frame(content.frame_id)] += 1
        elif not envelope.event_type.startswith(BOOKKEEPING):
            result = envelope.result or {}
            reference = result.get("reference")
            names_child = envelope.node_name == "below"  # and so differs from run to run
            digest = reference.get("sha256") if isinstance(reference, dict) and not names_child else None
            index = envelope.meta.get("loop_iteration_index")
            line = (envelope.event_type, envelope.node_name, index, result.get("status"), digest)
            if envelope.event_type not in OF_ATTEMPTS:
                told[line] += 1
            elif envelope.command_id not in given_up:
                told[line] = 1  # whoever goes on after a wait claims it again
    return told


def accounts(stack: LocalStack, execution_id: int) -> Mapping[str, Account]:
    """What the execution and the one below it have told, by playbook."""
    ended = stack.noetl("events", str(execution_id), "--follow", "--timeout", "300", seconds=330.0)
    assert ended.code == 0, ended
    told = history(stack, execution_id)
    (child,) = {
        str(event.envelope().meta["child_execution_id"])
        for event in told
        if event.envelope().event_type == "child.started"
    }
    for events in (told, history(stack, int(child))):
        assert [event.stream_version for event in events] == list(range(1, len(events) + 1))
    return {"all": account(told), "below": account(history(stack, int(child)))}


def completed(stack: LocalStack, execution_id: int) -> int:
    return sum(event.envelope().event_type == "command.completed" for event in history(stack, execution_id))


def all_rows_are_done(stack: LocalStack, execution_id: int) -> bool:
    return any(event.envelope().event_type == "stage.closed" for event in history(stack, execution_id))


def readiness(stack: LocalStack, service: str) -> int:
    ports = json.loads(stack.home.ports_file.read_text(encoding="utf-8"))
    connection = http.client.HTTPConnection("127.0.0.1", ports[f"{service}.ops"], timeout=10.0)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status
    finally:
        connection.close()


def is_ready(stack: LocalStack, service: str) -> bool:
    return readiness(stack, service) == http.HTTPStatus.OK


@contextmanager
def away(stop: AbstractContextManager[None]) -> Iterator[None]:
    """Something is gone for as long as an outage lasts, whatever is looked at in that time."""
    with stop:
        over_at = time.monotonic() + OUTAGE_SECONDS
        yield
        time.sleep(max(over_at - time.monotonic(), 0.0))


@pytest.fixture(scope="module")
def undisturbed(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Account]:
    return accounts(place.stack, started(place.stack, gated(tmp_path_factory.mktemp("calm"), "go")))


def gated(directory: Path, *files: str) -> Path:
    directory.chmod(0o755)
    for name in files:
        (directory / name).touch()
    return directory


def in_the_middle(stack: LocalStack, directory: Path) -> int:
    """An execution of which some items are done, and most are not."""
    execution_id = started(stack, gated(directory))
    eventually(lambda: completed(stack, execution_id) >= ITEMS // 3, seconds=120.0)
    assert not all_rows_are_done(stack, execution_id)
    return execution_id


def came_to_the_same(stack: LocalStack, execution_id: int, undisturbed: Mapping[str, Account]) -> None:
    found = accounts(stack, execution_id)
    for name, expected in undisturbed.items():
        assert found[name] - expected == Counter(), "nothing on top"
        assert expected - found[name] == Counter(), "nothing left out"
    for service in SERVICES:
        eventually(partial(is_ready, stack, service))


def test_nats_is_away(place: Place, undisturbed: Mapping[str, Account], tmp_path: Path) -> None:
    stack = place.stack
    execution_id = in_the_middle(stack, tmp_path)

    with away(stack.held_down("nats")):
        eventually(lambda: readiness(stack, "outbox-publisher") == 503)
        other = asyncio.run(noted(stack, 100, tmp_path))
        assert fetch_value(stack.owner_dsn, "SELECT count(*) FROM noetl.outbox") >= 100, "appends go on, and wait"
    (tmp_path / "go").touch()

    came_to_the_same(stack, execution_id, undisturbed)
    assert stack.noetl("events", str(other), "--follow", "--timeout", "100").code == 0
    eventually(lambda: fetch_value(stack.owner_dsn, "SELECT count(*) FROM noetl.outbox") == 0)
    head = len(history(stack, other))
    assert asyncio.run(delivered_versions(stack, other, head)) == list(range(1, head + 1)), "each once, in order"


def test_postgres_is_away(place: Place, undisturbed: Mapping[str, Account], tmp_path: Path) -> None:
    stack = place.stack
    execution_id = in_the_middle(stack, tmp_path)

    with away(stack.held_down("postgres")):
        eventually(lambda: readiness(stack, "outbox-publisher") == 503)
        refused = stack.noetl("status", str(execution_id), "-o", "json")
        assert refused.code == ExitCode.UNAVAILABLE, "whoever asks is told to come again"
    stack.pid("postgres")
    (tmp_path / "go").touch()

    came_to_the_same(stack, execution_id, undisturbed)


def test_the_object_store_is_away(place: Place, undisturbed: Mapping[str, Account], tmp_path: Path) -> None:
    stack = place.stack
    execution_id = in_the_middle(stack, tmp_path)

    with away(place.store.held_down()):
        known = completed(stack, execution_id)
        assert known < ITEMS, "results that cannot be stored are not told"
    (tmp_path / "go").touch()

    came_to_the_same(stack, execution_id, undisturbed)


def test_a_flood_of_executions_waits_at_whoever_starts_them(place: Place, undisturbed: Mapping[str, Account]) -> None:
    stack, refused, most = place.stack, list[Overloaded](), [0]

    async def start(executions: ExecutionClient) -> int:
        started = await when_there_is_room(
            lambda: executions.execute(None, path="tests/outage/below"),
            patience_seconds=300.0,
            on_wait=lambda refusal, seconds: refused.append(refusal),
        )
        return started.execution_id

    async def flood() -> list[int]:
        async with open_channel(stack.endpoint.address, token=stack.endpoint.token) as channel:
            executions = ExecutionClient(channel)
            starting = asyncio.gather(*(start(executions) for _ in range(60)))
            while not starting.done():
                open_now = await asyncio.to_thread(
                    fetch_value, stack.owner_dsn, "SELECT count(*) FROM noetl.stream WHERE NOT terminal"
                )
                most[0] = max(most[0], open_now)
            return await starting

    begun = asyncio.run(flood())

    assert refused and all(refusal.retry_seconds > 0 for refusal in refused)
    assert most[0] <= 20
    wanted = ",".join(map(str, begun))
    ended = f"SELECT count(*) FROM noetl.stream WHERE terminal AND execution_id IN ({wanted})"  # noqa: S608 - our ids
    eventually(lambda: fetch_value(stack.owner_dsn, ended) == len(set(begun)) == 60, seconds=120.0)


async def noted(stack: LocalStack, notes: int, directory: Path) -> int:
    """Another execution, started now, with notes of a user, one append each; workers that wait run it without a bus."""
    async with open_channel(stack.endpoint.address, token=stack.endpoint.token) as channel:
        log, executions = EventLogClient(channel), ExecutionClient(channel)
        execution_id = (
            await executions.execute(None, path="tests/outage/noted", payload={"directory": str(directory)})
        ).execution_id
        for number in range(notes):
            draft = Draft(event_type="user.note", idempotency_key=f"note/{number}")
            stream = StreamAppend(execution_id=execution_id, drafts=(draft,))
            await log.append(AppendRequest(tenant_id="default", organization_id="default", streams=(stream,)))
    return execution_id


async def delivered_versions(stack: LocalStack, execution_id: int, wanted: int) -> list[int]:
    """What the bus has of an execution, in its order."""
    ports = json.loads(stack.home.ports_file.read_text(encoding="utf-8"))
    node = NatsNode(directory=stack.home.root / "nats", port=ports["nats"], monitoring_port=ports["nats.monitoring"])
    client = await nats.connect(node.url)
    try:
        subscription = await client.jetstream().pull_subscribe(
            f"noetl.events.*.*.{execution_id}.*",
            stream=EVENTS_STREAM,
            config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL),
        )
        versions: list[int] = []
        while len(versions) < wanted:
            for message in await subscription.fetch(200, timeout=30):
                events = unpack_events(message.data, message.headers or {})
                versions += [event.stream_version for event in events]
                await message.ack()
        return versions
    finally:
        await client.close()
