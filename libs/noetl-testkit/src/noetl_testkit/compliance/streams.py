"""What everybody who lists streams must know; adapters subclass this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta

import pytest
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.streams import Streams

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
