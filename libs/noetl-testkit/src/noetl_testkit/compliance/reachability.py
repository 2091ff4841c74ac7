"""What every scan over the log must do: leave nothing out."""

from abc import ABC, abstractmethod

import pytest
from noetl_core.append import StreamStart
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.reachability import LogScan, ScannedEvent

from noetl_testkit.compliance.event_log import ACME, RIVAL, new_id, note, request


async def scanned(scan: LogScan, *, own: bool) -> list[ScannedEvent]:
    return [event async for page in scan.events(ACME if own else None) for event in page]


class LogScanCompliance(ABC):
    """One suite, run by the adapter and by the in-memory twin; pages are of three events."""

    @pytest.fixture
    @abstractmethod
    def log(self) -> EventLog:
        """An empty log."""

    @pytest.fixture
    @abstractmethod
    def scan(self) -> LogScan:
        """The scan over this log, in pages of three events."""

    async def test_an_empty_log_has_no_events(self, log: EventLog, scan: LogScan) -> None:
        assert await scanned(scan, own=False) == []

    @pytest.mark.parametrize("count", [1, 3, 7])
    async def test_every_event_is_met_once_each_stream_in_its_order(
        self, log: EventLog, scan: LogScan, count: int
    ) -> None:
        ids = sorted(new_id() for _ in range(3))
        for execution_id in ids:
            notes = [note(f"{n}") for n in range(count)]
            await log.append(request(execution_id, *notes, start=StreamStart()))

        met = await scanned(scan, own=False)

        keys = [(event.execution_id, event.body) for event in met]
        expected = [
            (execution_id, event.body) for execution_id in ids for event in (await log.read(None, execution_id)).events
        ]
        assert keys == expected

    async def test_others_are_left_out_and_hide_nobody(self, log: EventLog, scan: LogScan) -> None:
        mine = []
        for number in range(8):
            execution_id = new_id()
            own = number % 4 == 3
            await log.append(
                request(execution_id, note("a"), note("b"), scope=ACME if own else RIVAL, start=StreamStart())
            )
            mine += [execution_id] * 2 if own else []

        assert [event.execution_id for event in await scanned(scan, own=True)] == sorted(mine)
        assert len(await scanned(scan, own=False)) == 16

    async def test_the_clock_is_that_of_the_log(self, log: EventLog, scan: LogScan) -> None:
        before = await scan.now()
        await log.append(request(new_id(), note("a"), start=StreamStart()))
        after = await scan.now()

        (event,) = await scanned(scan, own=True)
        assert before <= event.ingest_time <= after
        assert (event.tenant_id, event.organization_id) == (ACME.tenant_id, ACME.organization_id)
