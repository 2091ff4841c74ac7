from __future__ import annotations

from noetl_api.application.read_events import ReadEvents
from noetl_core.ports.event_log import EventPage, Scope
from noetl_servicekit.callers import Caller, Role
from noetl_testkit.histories import EXECUTION, History, two_steps
from noetl_testkit.memory.history_log import HistoryLog

RITA = Caller(name="rita", tenant_id="default", organization_id="default", role=Role.READER)


class LogWithHoles(HistoryLog):
    """Somebody removed events; the head does not know."""

    def __init__(self, history: History, *, gone: frozenset[int]) -> None:
        super().__init__(history)
        self._gone = gone

    async def read(
        self, scope: Scope | None, execution_id: int, *, from_version: int = 1, to_version: int = 0, limit: int = 500
    ) -> EventPage:
        page = await super().read(scope, execution_id, from_version=from_version, to_version=to_version)
        left = [event for event in page.events if event.stream_version not in self._gone][:4]
        return EventPage(events=tuple(left), head_version=page.head_version, terminal=page.terminal)


async def test_whoever_reads_a_log_with_holes_gets_what_is_left_once_and_an_end() -> None:
    log = LogWithHoles(two_steps(History()), gone=frozenset({1, 6, 7, 17, 18}))

    pages = [page async for page in ReadEvents(log).all(RITA, None, EXECUTION)]

    assert [event.stream_version for page in pages for event in page.events] == [2, 3, 4, 5, *range(8, 17)]
