"""What everybody who lists streams must know; adapters subclass this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta

import pytest
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.streams import HiddenStreams, Streams

from noetl_testkit.compliance.descendants import end
from noetl_testkit.compliance.event_log import ACME, RIVAL, history, note, request, start


class StreamsCompliance(ABC):
    """Every stream of a tenant is seen once, with what proves it."""

    @pytest.fixture
    @abstractmethod
    def log(self) -> EventLog:
        """An empty log."""

    @pytest.fixture
    @abstractmethod
    def streams(self, log: EventLog) -> Streams:
        """Who knows the heads of that log."""

    async def test_heads_come_by_id_with_the_checksum_of_their_last_event(
        self, log: EventLog, streams: Streams
    ) -> None:
        mine = sorted([await start(log), await start(log), await start(log)])
        other = await start(log, scope=RIVAL)
        await log.append(request(mine[1], note("second")))
        await end(log, mine[2])

        page = await streams.list_streams(ACME)
        everybody = await streams.list_streams(None)

        assert (page.scope, everybody.scope) == (ACME, None)
        assert page.log_branch == everybody.log_branch != ""
        assert [head.execution_id for head in page.heads] == mine
        assert {head.execution_id for head in everybody.heads} == {*mine, other}
        assert [(head.version, head.terminal) for head in page.heads] == [(1, False), (2, False), (2, True)]
        for head in page.heads:
            assert head.checksum == (await history(log, head.execution_id))[-1].checksum
            assert await streams.find_stream(ACME, head.execution_id) == head
        assert await streams.find_stream(ACME, other) is None

    async def test_pages_lead_through_all_of_them(self, log: EventLog, streams: Streams) -> None:
        mine = sorted([await start(log) for _ in range(5)])
        seen: list[int] = []
        more = True
        while more:
            page = await streams.list_streams(ACME, after=seen[-1] if seen else 0, limit=2)
            seen += [head.execution_id for head in page.heads]
            more = page.more

        assert seen == mine

    async def test_only_what_moved_since_is_listed(self, log: EventLog, streams: Streams) -> None:
        old = await start(log)
        before = await streams.find_stream(ACME, old)
        assert before is not None
        since = before.updated_at + timedelta(microseconds=1)
        young = await start(log)
        moved = [head.execution_id for head in (await streams.list_streams(ACME, moved_since=since)).heads]

        assert moved == [young]


class HiddenStreamsCompliance(ABC):
    """Whoever takes an execution out of its tenant's list is found out, and nobody else."""

    @pytest.fixture
    @abstractmethod
    def log(self) -> EventLog:
        """An empty log."""

    @pytest.fixture
    @abstractmethod
    def streams(self, log: EventLog) -> HiddenStreams:
        """Who looks through that log."""

    @abstractmethod
    async def give_away(self, log: EventLog, execution_id: int) -> None:
        """Change the head of an execution to that of a tenant named evil."""

    async def test_nothing_of_a_log_that_nobody_touched_is_hidden(self, log: EventLog, streams: HiddenStreams) -> None:
        nothing = await streams.list_hidden(None)
        for scope in (ACME, ACME, RIVAL):
            await start(log, scope=scope)

        assert nothing == await streams.list_hidden(None) == await streams.list_hidden(ACME)
        assert (nothing.hidden, nothing.following) == ((), None)

    async def test_what_was_given_to_another_tenant_is_shown_to_its_own(
        self, log: EventLog, streams: HiddenStreams
    ) -> None:
        mine = sorted([await start(log) for _ in range(3)])
        await log.append(request(mine[1], note("second")))
        await self.give_away(log, mine[1])

        found = (await streams.list_hidden(ACME)).hidden

        assert [(one.execution_id, one.tenant_id, one.organization_id, one.has_head) for one in found] == [
            (mine[1], ACME.tenant_id, ACME.organization_id, True)
        ]
        assert (await streams.list_hidden(None)).hidden == found
        assert (await streams.list_hidden(RIVAL)).hidden == ()

    async def test_pages_lead_past_all_executions_whether_anything_is_found_or_not(
        self, log: EventLog, streams: HiddenStreams
    ) -> None:
        mine = sorted([await start(log) for _ in range(5)])
        for one in (mine[2], mine[4]):
            await log.append(request(one, *(note(str(number)) for number in range(5))))
            await self.give_away(log, one)
        found: list[int] = []
        looked: list[int | None] = [0]
        while (after := looked[-1]) is not None:
            page = await streams.list_hidden(ACME, after=after, limit=2)
            found += [one.execution_id for one in page.hidden]
            looked.append(page.following)

        assert found == [mine[2], mine[4]]
        assert looked == [0, mine[1], mine[3], None]
