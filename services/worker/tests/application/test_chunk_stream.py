"""Rows on their way out: stored before they are told, each chunk once, and nobody told more than can wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.append import AppendRequest, StreamAppend, StreamStart
from noetl_core.canonical import JsonValue
from noetl_core.catalog import to_draft
from noetl_core.errors import InvalidInput, LeaseLost, NoetlError, NotFound, Unavailable
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.payloads import PayloadRef, refer_to_digest
from noetl_core.playbook.model import Step
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand, ToldChunk, Worker
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE
from noetl_core.streams.events import CallPartial
from noetl_core.streams.state import Place
from noetl_servicekit.chunk_rows import LoadRows, StoredChunk, is_streamed, mark_of, reads_rows
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.chunk_stream import ChunkNotTold, ChunkStream, TellChunks
from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.persist_before_emit import lost_result
from noetl_worker.application.pipeline import Pipeline
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.resting import Resting
from noetl_worker.application.tool_call import ToolCall

COMMAND = GrantedCommand(
    key=CommandKey(execution_id=1, command_id="c"),
    tenant_id="t",
    organization_id="o",
    catalog_id="1",
    step="s",
    activation=1,
    attempt=1,
    lease_seconds=45,
    idempotency_key="k",
    issued_at=datetime(2026, 1, 1, tzinfo=UTC),
)
DONE = Outcome(data={"status": "success", "columns": ["n"]})


@dataclass
class Planner:
    """Takes chunks; before some of them it says what the test wants it to say."""

    told: list[ToldChunk] = field(default_factory=list)
    answers: list[bool | NoetlError] = field(default_factory=list)

    async def tell_chunk(self, worker: Worker, key: CommandKey, chunk: ToldChunk) -> bool:
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, NoetlError):
            raise answer
        if answer:
            self.told.append(chunk)
        return answer


class Setup:
    def __init__(self) -> None:
        self.planner = Planner()
        self.payloads = InMemoryPayloadStore()
        self.log = InMemoryEventLog()
        self.resting = Resting()
        self.rested: list[int] = []
        self.tell = TellChunks(
            commands=self.planner,  # type: ignore[arg-type]  # all that a stream asks of it
            log=self.log,
            payloads=self.payloads,
            tables=ArrowTables(),
            worker=Worker(worker_id="w"),
            resting=self.resting,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.rested.append(len(self.resting))
        await asyncio.sleep(0)

    async def stream(self, command: GrantedCommand = COMMAND, *, call: int = 0, rows: int = 2) -> ChunkStream:
        return await self.tell.open(command, task="s_task", call=call, chunk_rows=rows)

    async def rows_of(self, chunk: ToldChunk) -> JsonValue:
        return [*await LoadRows(self.payloads, ArrowTables()).rows(chunk.rows)]


def rows(*numbers: int) -> list[JsonValue]:
    return [{"n": number} for number in numbers]


async def test_a_chunk_is_told_when_it_is_known_whether_another_one_follows() -> None:
    setup = Setup()
    stream = await setup.stream()

    await stream.put(rows(1, 2))
    assert setup.planner.told == []
    await stream.put(rows(3))
    outcome = await stream.settle(DONE)

    told = [(one.chunk_index, one.row_count, one.has_more, one.call) for one in setup.planner.told]
    assert told == [(0, 2, True, 0), (1, 1, False, 0)]
    assert [await setup.rows_of(one) for one in setup.planner.told] == [rows(1, 2), rows(3)]
    assert isinstance(outcome.data, dict)
    assert (outcome.data["row_count"], outcome.data["chunk_count"]) == (3, 2)
    loaded = await LoadRows(setup.payloads, ArrowTables())(outcome.data, tenant_id="t", organization_id="o")
    assert isinstance(loaded, dict)
    assert loaded["rows"] == rows(1, 2, 3)


async def test_a_call_that_is_made_again_tells_only_what_it_had_not_told() -> None:
    setup = Setup()
    stream = await setup.stream()
    await stream.put(rows(1))
    await stream.put(rows(2))
    failed = await stream.settle(Outcome.failed(kind=ErrorKind.TIMEOUT, code="TIMEOUT", message="no"))
    stream.restart(KnownSecrets())
    for number in (1, 2, 3):
        await stream.put(rows(number))
    outcome = await stream.settle(DONE)

    assert failed.error is not None
    assert [(one.chunk_index, one.has_more) for one in setup.planner.told] == [(0, True), (1, True), (2, False)]
    assert isinstance(outcome.data, dict)
    assert outcome.data["row_count"] == 3


async def test_what_an_earlier_attempt_has_told_is_known_from_the_log_and_passed_over() -> None:
    setup = Setup()
    first = PlaybookInitialized(path="p", version=1, catalog_id="1", payload_ref=None)
    ref = await setup.payloads.put(tenant_id="t", organization_id="o", data=b'[{"n":7}]', media_type="application/json")
    told = CallPartial(
        command_id="c0", step="s", task="s_task", call=0, chunk_index=0, row_count=1, has_more=True, payload_ref=ref
    )
    drafts = (to_draft(first, idempotency_key="execution/start"), to_draft(told, idempotency_key="stream/0"))
    stream_append = StreamAppend(execution_id=1, drafts=drafts, start=StreamStart())
    await setup.log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream_append,)))

    stream = await setup.stream(replace(COMMAND, attempt=2, streamed=Place(call=0, chunk=1)), rows=1)
    await stream.put(rows(99))
    await stream.put(rows(8))
    outcome = await stream.settle(DONE)

    assert [one.chunk_index for one in setup.planner.told] == [1]
    loaded = await LoadRows(setup.payloads, ArrowTables())(outcome.data, tenant_id="t", organization_id="o")
    assert isinstance(loaded, dict)
    assert loaded["rows"] == rows(7, 8)


async def test_a_call_whose_successor_has_told_chunks_tells_nothing_more() -> None:
    setup = Setup()
    first = PlaybookInitialized(path="p", version=1, catalog_id="1", payload_ref=None)
    stream_append = StreamAppend(
        execution_id=1, drafts=(to_draft(first, idempotency_key="execution/start"),), start=StreamStart()
    )
    await setup.log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream_append,)))

    stream = await setup.stream(replace(COMMAND, attempt=2, streamed=Place(call=1, chunk=1)), rows=1)
    await stream.put(rows(1))
    await stream.settle(DONE)

    assert setup.planner.told == []


async def test_who_waits_for_room_lends_its_slot_and_goes_on_afterwards() -> None:
    setup = Setup()
    setup.planner.answers = [False, False, Unavailable("away"), True]
    stream = await setup.stream()
    await stream.put(rows(1))
    await stream.settle(DONE)

    assert [one.chunk_index for one in setup.planner.told] == [0]
    assert setup.rested == [1, 1, 1]
    assert len(setup.resting) == 0


async def test_a_claim_that_is_lost_ends_the_call() -> None:
    setup = Setup()
    setup.planner.answers = [LeaseLost(command_id="c", worker="w", holder="x")]
    stream = await setup.stream()
    await stream.put(rows(1))

    with pytest.raises(LeaseLost):
        await stream.settle(DONE)


async def test_a_chunk_that_is_refused_is_an_error_of_the_call() -> None:
    setup = Setup()
    setup.planner.answers = [InvalidInput("out of turn")]
    stream = await setup.stream()
    await stream.put(rows(1))

    with pytest.raises(ChunkNotTold) as refused:
        await stream.settle(DONE)
    assert refused.value.outcome.error is not None


def test_marks_are_found_where_results_have_them_and_nowhere_else() -> None:
    mark = mark_of([])
    assert is_streamed({"rows": mark})
    assert is_streamed({"results": {"a": {"rows": mark}}})
    assert is_streamed({"results": [{"rows": mark}]})
    assert not is_streamed({"rows": [mark]})
    assert not is_streamed({"_chunks": "text"})
    assert StoredChunk.__doc__


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        ("{{ a.rows }}", True),
        ("{{ a.rows | length }}", True),
        ("{{ a }}", True),
        ("{{ _prev }}", True),
        ("{{ a.row_count + a.chunk_count }}", False),
        ("{{ results.a.columns }}", False),
        ("{{ b.rows }}", False),
        ("context['a']", True),
    ],
)
def test_rows_are_loaded_for_templates_that_read_them(template: str, reads: bool) -> None:
    assert reads_rows([template], frozenset({"a", "_prev", "results"})) is reads


# --- in pipelines -----------------------------------------------------------------------------------------


class Streaming:
    """A tool that gives its rows to the sink, fails as often as the test says, and remembers what it was asked."""

    def __init__(self, numbers: Sequence[int], *, failures: int = 0) -> None:
        self.numbers = numbers
        self.failures = failures
        self.asked: list[Mapping[str, JsonValue]] = []

    async def run(self, call: ToolCall) -> Outcome:
        self.asked.append(call.rendered_input())
        if call.chunks is None:
            return Outcome(data={"n": len(self.asked)})
        size = call.chunks.chunk_rows
        for start in range(0, len(self.numbers), size):
            await call.chunks.put(rows(*self.numbers[start : start + size]))
            if self.failures and start:
                self.failures -= 1
                return Outcome.failed(kind=ErrorKind.CONNECTION, code="CONN", message="gone")
        return Outcome(data={"status": "success", "columns": ["n"]})


def step_of(yaml: str) -> Step:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n- step: s\n"
    playbook, _ = parse_playbook(head + yaml, supported=EVERYTHING)
    return playbook.steps["s"]


async def run(yaml: str, tool: Any, setup: Setup, **names: Any) -> PipelineEnd:
    async def at_once(seconds: float) -> None:
        await asyncio.sleep(0)

    pipeline = Pipeline(tool, sleep=at_once, chance=lambda: 0.0, streams=setup.tell)
    end = await pipeline(COMMAND, step_of(yaml), {"ctx": names, **names})
    assert isinstance(end, PipelineEnd)
    return end


async def test_a_retry_delivers_no_chunk_twice() -> None:
    setup, tool = Setup(), Streaming([1, 2, 3, 4, 5], failures=1)
    end = await run(
        "  tool: {kind: postgres, auth: db, command: x, spec: {stream: {chunk_rows: 2}, policy: {rules: ["
        "{when: '{{ output.error }}', then: {do: retry, attempts: 3, delay: 0}}]}}}\n",
        tool,
        setup,
    )

    assert end.outcome.error is None
    assert [(one.chunk_index, one.row_count) for one in setup.planner.told] == [(0, 2), (1, 2), (2, 1)]
    assert len(tool.asked) == 2


async def test_each_streaming_task_has_chunks_of_its_own_and_later_tasks_read_their_rows() -> None:
    setup, tool = Setup(), Streaming([1, 2, 3])
    end = await run(
        "  tool:\n"
        "  - {name: one, kind: duckdb, command: x, spec: {stream: {chunk_rows: 2}}}\n"
        "  - {name: two, kind: duckdb, command: x, spec: {stream: {chunk_rows: 3}}}\n"
        "  - {name: last, kind: noop, input: "
        "{rows: '{{ one.rows }}', prev: '{{ _prev.rows }}', n: '{{ output.row_count }}'}}\n",
        tool,
        setup,
    )

    assert [(one.call, one.chunk_index, one.task) for one in setup.planner.told] == [
        (0, 0, "one"),
        (0, 1, "one"),
        (1, 0, "two"),
    ]
    assert tool.asked[-1] == {"rows": rows(1, 2, 3), "prev": rows(1, 2, 3), "n": 3}
    assert is_streamed(end.outcome.data)  # what is stored has marks, and no rows


class Paged:
    """An http server of three pages, the last of which is empty."""

    def __init__(self) -> None:
        self.pages = [[1, 2], [3, 4], []]

    async def run(self, call: ToolCall) -> Outcome:
        return Outcome(data={"status_code": 200, "data": rows(*self.pages.pop(0)), "url": "http://x"})


async def test_pages_are_chunks_and_an_empty_page_is_none() -> None:
    setup = Setup()
    end = await run(
        "  tool: {kind: http, url: x, spec: {stream: {}, policy: {paginate: {by: page, param: p}}}}\n", Paged(), setup
    )

    assert [(one.chunk_index, one.row_count, one.has_more) for one in setup.planner.told] == [
        (0, 2, True),
        (1, 2, False),
    ]
    data = await LoadRows(setup.payloads, ArrowTables())(end.outcome.data, tenant_id="t", organization_id="o")
    assert isinstance(data, dict)
    assert (data["data"], data["body"]) == (rows(1, 2, 3, 4), rows(1, 2, 3, 4))
    assert (data["pages"], data["item_count"], data["chunk_count"]) == (3, 4, 2)


async def test_a_tool_that_knows_nothing_of_streams_is_streamed_all_the_same() -> None:
    class Plain:
        async def run(self, call: ToolCall) -> Outcome:
            return Outcome(data={"status": "success", "rows": rows(1, 2, 3)})

    setup = Setup()
    await run("  tool: {kind: duckdb, command: x, spec: {stream: {chunk_rows: 2}}}\n", Plain(), setup)

    assert [one.row_count for one in setup.planner.told] == [2, 1]


async def test_chunks_are_tables_unless_json_alone_keeps_their_values() -> None:
    setup = Setup()
    stream = await setup.stream(rows=2)
    stream.restart(KnownSecrets())
    chunks: list[list[JsonValue]] = [[{"a": 1, "b": None}], [{"a": 1}, {"a": "1"}], [1, 2]]
    for rows in chunks:
        await stream.put(rows)
    await stream.settle(Outcome(data={}))

    stored = [chunk.rows.media_type for chunk in setup.planner.told]
    assert stored == ["application/vnd.apache.arrow.stream", "application/json", "application/json"]
    assert [await setup.rows_of(chunk) for chunk in setup.planner.told] == chunks


async def test_a_chunk_that_waits_for_long_is_stored_again_before_it_is_told() -> None:
    """Nothing refers to it while it waits: a collector may have put it aside, and deleted it later."""
    setup = Setup()
    times = iter(range(0, 10_000, 1_000))
    stream = await replace(setup.tell, clock=lambda: float(next(times))).open(
        COMMAND, task="s_task", call=0, chunk_rows=2
    )
    setup.planner.answers = [False, False, True]
    await stream.put(rows(1, 2))
    later = datetime.now(UTC) + timedelta(days=1)

    async def put_aside(seconds: float) -> None:
        for stored in [one async for one in setup.payloads.find(tenant_id="t", organization_id="o")]:
            ref = refer_to_digest(stored.sha256, size=stored.bytes, tenant_id="t", organization_id="o")
            await setup.payloads.withdraw(ref, stored_before=later)

    stream._tell = replace(stream._tell, sleep=put_aside)
    await stream.settle(DONE)

    (told,) = setup.planner.told
    assert [one.sha256 async for one in setup.payloads.find(tenant_id="t", organization_id="o")] == [told.rows.sha256]


async def test_a_chunk_that_is_gone_when_its_turn_comes_is_not_told() -> None:
    setup = Setup()
    times = iter(range(0, 10_000, 1_000))
    stream = await replace(setup.tell, clock=lambda: float(next(times))).open(
        COMMAND, task="s_task", call=0, chunk_rows=2
    )
    setup.planner.answers = [False]
    await stream.put(rows(1, 2))

    async def lose(seconds: float) -> None:
        setup.payloads.objects.clear()

    stream._tell = replace(stream._tell, sleep=lose)
    with pytest.raises(ChunkNotTold) as failure:
        await stream.settle(DONE)

    assert failure.value.outcome.error is not None
    assert failure.value.outcome.error.code == "REFERENCE_NOT_AVAILABLE"
    assert setup.planner.told == []


# --- lost data --------------------------------------------------------------------------------------------


RETRY = "rules: [{when: \"{{ error.code == 'REFERENCE_NOT_AVAILABLE' }}\", then: {do: retry, attempts: 3, delay: 0}}]"


async def test_a_streaming_call_whose_result_is_lost_is_made_again_and_tells_nothing_twice() -> None:
    setup, tool = Setup(), Streaming([1, 2, 3])
    pipeline = Pipeline(tool, sleep=setup.tell.sleep, chance=lambda: 0.0, streams=setup.tell)
    step = step_of(f"  tool: {{kind: duckdb, command: x, spec: {{stream: {{chunk_rows: 2}}, policy: {{{RETRY}}}}}}}\n")
    end: Any = await pipeline(COMMAND, step, {"ctx": {}})
    returned = 0
    while True:
        again = await pipeline.return_to_producer(end, lost_result("no room", end.outcome.meta))
        if again is None:
            break
        returned, end = returned + 1, again
        assert end.outcome.data["row_count"] == 3

    assert (returned, len(tool.asked)) == (2, 3)  # three runs in all, as the rule says
    assert [(one.call, one.chunk_index) for one in setup.planner.told] == [(0, 0), (0, 1)]


class RefusingStore(InMemoryPayloadStore):
    """Has no room, or loses what it had, a number of times."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = self.misses = 0

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        if self.refusals:
            self.refusals -= 1
            raise InvalidInput("there is no room")
        return await super().put(tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type)

    async def get(self, ref: PayloadRef) -> bytes:
        if self.misses:
            self.misses -= 1
            raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE)
        return await super().get(ref)


def on_refusing_store() -> tuple[Setup, RefusingStore]:
    setup, store = Setup(), RefusingStore()
    setup.payloads, setup.tell = store, replace(setup.tell, payloads=store)
    return setup, store


@pytest.mark.parametrize(("refusals", "is_told"), [(2, True), (3, False)])
async def test_pages_that_cannot_be_stored_are_asked_for_again_as_the_rules_say(refusals: int, is_told: bool) -> None:
    setup, store = on_refusing_store()
    store.refusals = refusals

    class Server:
        async def run(self, call: ToolCall) -> Outcome:
            asked: Any = call.render(call.config.get("params"))
            return Outcome(data={"status_code": 200, "data": rows(asked["p"]) if asked["p"] < 3 else []})

    policy = f"{{paginate: {{by: page, param: p}}, {RETRY}}}"
    end = await run(f"  tool: {{kind: http, url: x, spec: {{stream: {{}}, policy: {policy}}}}}\n", Server(), setup)

    if is_told:
        assert end.outcome.error is None
        assert [(one.chunk_index, one.has_more) for one in setup.planner.told] == [(0, True), (1, False)]
    else:
        assert end.outcome.error is not None
        assert end.outcome.error.code == REFERENCE_NOT_AVAILABLE
        assert setup.planner.told == []


async def test_a_task_whose_rows_are_gone_may_go_back_to_the_task_that_made_them() -> None:
    setup, store = on_refusing_store()
    store.misses = 1
    tool = Streaming([1, 2, 3])
    jump = RETRY.replace("do: retry, attempts: 3, delay: 0", "do: jump, to: one")
    end = await run(
        "  tool:\n"
        "  - {name: one, kind: duckdb, command: x, spec: {stream: {chunk_rows: 9}}}\n"
        f"  - {{name: two, kind: noop, input: {{rows: '{{{{ one.rows }}}}'}}, spec: {{policy: {{{jump}}}}}}}\n",
        tool,
        setup,
    )

    assert end.outcome.error is None
    assert tool.asked[-1] == {"rows": rows(1, 2, 3)}
    assert [one.call for one in setup.planner.told] == [0, 1]
