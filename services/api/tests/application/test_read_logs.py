"""What calls printed is found in the history, page by page and as they end."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import pytest
from noetl_api.application import read_logs
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.read_events import ReadEvents
from noetl_api.application.read_logs import LogPage, ReadLogs
from noetl_api.application.watch_events import WatchEvents
from noetl_core.append import END_KEY, AppendRequest, StreamAppend, StreamStart
from noetl_core.call_logs import CallLog, CallOutput
from noetl_core.canonical import encode
from noetl_core.commands.events import CallDone, CallFailed
from noetl_core.envelope import Draft
from noetl_core.errors import NotFound
from noetl_core.events import to_draft
from noetl_core.executions.events import PlaybookCompleted, PlaybookInitialized
from noetl_core.nodes import OfCommand
from noetl_servicekit.callers import Caller, Role
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore

ADA = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.READER)
EVE = Caller(name="eve", tenant_id="other", organization_id="ops", role=Role.READER)
OK: dict[str, object] = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}


class Setup:
    def __init__(self) -> None:
        self.log = InMemoryEventLog()
        self.payloads = InMemoryPayloadStore()
        self.signal = CommitSignal()
        self.execution_id = self.log.next_id()
        self.read = ReadLogs(
            read_events=ReadEvents(self.log),
            watch_events=WatchEvents(self.log, self.signal),
            payloads=self.payloads,
        )
        self._calls = 0

    async def append(self, *drafts: Draft, start: bool = False) -> None:
        stream = StreamAppend(execution_id=self.execution_id, drafts=drafts, start=StreamStart() if start else None)
        appended = await self.log.append(AppendRequest(tenant_id="acme", organization_id="ops", streams=(stream,)))
        self.signal.moved(self.execution_id, appended[-1].event.stream_version)

    async def begin(self) -> None:
        first = PlaybookInitialized(path="a/b", version=1, catalog_id="5", payload_ref=None)
        await self.append(to_draft(first, idempotency_key="execution/start"), start=True)

    async def end(self) -> None:
        await self.append(to_draft(PlaybookCompleted(), idempotency_key=END_KEY))

    async def call(self, step: str, text: str | None, *, attempt: int = 1, failed: bool = False) -> None:
        self._calls += 1
        command_id = f"c{self._calls}"
        logs = None
        if text is not None:
            output = CallOutput(task=f"{step}_task", run=1, stdout=text)
            log = CallLog(step=step, activation=1, attempt=attempt, outputs=(output,), first_runs=1)
            ref = await self.payloads.put(
                tenant_id="acme", organization_id="ops", data=encode(log.to_json()), media_type="application/json"
            )
            logs = ref.to_json()
        ids = OfCommand(command_id=command_id, step=step, pipeline=attempt > 1 or None)
        content = (CallFailed if failed else CallDone)(**asdict(ids), result=OK, logs=logs)
        await self.append(to_draft(content, idempotency_key=f"command/{command_id}/call"))


@pytest.fixture
async def setup() -> Setup:
    setup = Setup()
    await setup.begin()
    return setup


def texts(page: LogPage) -> list[str]:
    return [output.stdout for call in page.calls for output in call.log.outputs]


async def test_a_page_has_what_was_printed_in_order_and_says_where_to_go_on(setup: Setup) -> None:
    for number in range(5):
        await setup.call("load", f"{number}")
        await setup.call("quiet", None)

    first = await setup.read.page(ADA, None, setup.execution_id, size=2)
    second = await setup.read.page(ADA, None, setup.execution_id, from_version=first.next_version, size=2)
    third = await setup.read.page(ADA, None, setup.execution_id, from_version=second.next_version, size=2)

    assert [texts(page) for page in (first, second, third)] == [["0", "1"], ["2", "3"], ["4"]]
    assert third.next_version == 0


async def test_only_one_step_or_attempt_is_shown_if_so_asked(setup: Setup) -> None:
    await setup.call("load", "a", attempt=1, failed=True)
    await setup.call("load", "b", attempt=2)
    await setup.call("save", "c")

    of_step = await setup.read.page(ADA, None, setup.execution_id, step="load")
    of_attempt = await setup.read.page(ADA, None, setup.execution_id, step="load", attempt=2)

    assert [(call.failed, call.log.attempt) for call in of_step.calls] == [(True, 1), (False, 2)]
    assert texts(of_attempt) == ["b"]


async def test_a_page_is_closed_when_it_has_much_to_say(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_logs, "MAX_PAGE_CHARACTERS", 10)
    for _ in range(3):
        await setup.call("load", "x" * 8)

    page = await setup.read.page(ADA, None, setup.execution_id)

    assert len(page.calls) == 2
    assert page.next_version > 0


async def test_a_follower_is_told_as_calls_end_until_the_execution_does(setup: Setup) -> None:
    seen: asyncio.Queue[LogPage] = asyncio.Queue()

    async def follow() -> None:
        async for page in setup.read.stream(ADA, None, setup.execution_id, step="load", follow=True):
            if page.calls or page.terminal:
                await seen.put(page)

    following = asyncio.create_task(follow())
    await setup.call("load", "one")
    first = await asyncio.wait_for(seen.get(), 30)
    await setup.call("save", "no")
    await setup.call("load", "two")
    second = await asyncio.wait_for(seen.get(), 30)
    await setup.end()
    last = await asyncio.wait_for(seen.get(), 30)
    await asyncio.wait_for(following, 30)

    assert [texts(page) for page in (first, second, last)] == [["one"], ["two"], []]
    assert last.terminal


async def test_output_that_is_gone_is_said_to_be_missing(setup: Setup) -> None:
    await setup.call("load", "one")
    setup.read = ReadLogs(
        read_events=ReadEvents(setup.log),
        watch_events=WatchEvents(setup.log, setup.signal),
        payloads=InMemoryPayloadStore(),
    )

    page = await setup.read.page(ADA, None, setup.execution_id)

    assert [(call.log.step, bool(call.missing)) for call in page.calls] == [("load", True)]


async def test_what_others_printed_does_not_exist(setup: Setup) -> None:
    await setup.call("load", "one")

    with pytest.raises(NotFound):
        await setup.read.page(EVE, None, setup.execution_id)
