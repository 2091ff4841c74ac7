"""An export that is stopped anywhere, or runs twice at once, leaves every event in exactly one file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from noetl_adapters.lake.lake_files import DirectoryLake
from noetl_adapters.lake.parquet_events import ParquetEvents
from noetl_cli.lake.check import check_lake
from noetl_cli.lake.export import Exported, LakeExport
from noetl_core.errors import AlreadyExists, Corrupt
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead, StreamPage
from noetl_testkit.compliance.event_log import ACME, RIVAL, note, request, start
from noetl_testkit.memory.event_log import InMemoryEventLog

DAY = datetime(2026, 1, 1, 23, 59, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_power_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are killed here, the machine is not: nothing has to reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Killed(BaseException):
    """Nothing after this runs, as after kill -9."""


class DyingLake(DirectoryLake):
    """Is killed before, or just after, its nth change."""

    def __init__(self, root: Path, *, dies_at: int, after: bool) -> None:
        super().__init__(root)
        self._left = dies_at
        self._after = after

    def write(self, path: str, data: bytes) -> None:
        self._change(lambda: super(DyingLake, self).write(path, data))

    def create(self, path: str, data: bytes) -> None:
        self._change(lambda: super(DyingLake, self).create(path, data))

    def move(self, path: str, target: str) -> None:
        self._change(lambda: super(DyingLake, self).move(path, target))

    def _change(self, change: Callable[[], None]) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Killed
        change()
        if self._left == 0:
            raise Killed


class Clock:
    def __init__(self) -> None:
        self.now = DAY

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


async def some_log() -> InMemoryEventLog:
    """Four executions of two tenants, around midnight."""
    log = InMemoryEventLog(clock=Clock())
    for number in range(4):
        scope = ACME if number < 3 else RIVAL
        execution_id = await start(log, scope=scope)
        for key in range(25):
            await log.append(request(execution_id, note(f"{key}"), scope=scope))
    return log


async def export(log: InMemoryEventLog, lake: DirectoryLake, *, scope: Scope | None = None) -> Exported:
    return await LakeExport(log, log, lake, ParquetEvents(), scope=scope, batch_events=30, positions_every=2).run()


def files_in(root: Path) -> list[Path]:
    return sorted(root.glob("events/*/*/*.parquet"))


def exported_events(root: Path) -> Counter[tuple[int, int]]:
    """What a reader of the files sees, who knows nothing of manifests."""
    events = [event for file in files_in(root) for event in ParquetEvents().decode_events(file.read_bytes())]
    return Counter((event.envelope().execution_id, event.stream_version) for event in events)


def appended_events(log: InMemoryEventLog) -> Counter[tuple[int, int]]:
    return Counter((key, event.stream_version) for key, stream in log.streams.items() for event in stream.events)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_an_export_that_is_killed_at_any_change_goes_on_and_has_every_event_once(
    tmp_path: Path, after: bool
) -> None:
    log = await some_log()
    dies_at = 0
    while True:
        dies_at += 1
        root = tmp_path / str(dies_at)
        try:
            await export(log, DyingLake(root, dies_at=dies_at, after=after))
        except Killed:
            assert max(exported_events(root).values(), default=0) <= 1, "what is seen before it goes on"
            await export(log, DirectoryLake(root))
        else:
            break
        assert exported_events(root) == appended_events(log)
        assert check_lake(DirectoryLake(root), ParquetEvents()).problems == []
    assert dies_at > 10


async def test_what_has_happened_since_is_added(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    first = await export(log, lake)
    nothing = await export(log, lake)
    for execution_id, stream in list(log.streams.items()):
        scope = Scope(tenant_id=stream.head.tenant_id, organization_id=stream.head.organization_id)
        await log.append(request(execution_id, note("later"), scope=scope))
    later = await export(log, lake)

    assert (first.events, nothing.events, later.events) == (104, 0, 4)
    assert exported_events(tmp_path) == appended_events(log)
    files = files_in(tmp_path)
    assert {path.parent.name for path in files} == {"date=2026-01-01", "date=2026-01-02"}
    assert {path.parent.parent.name for path in files} == {"tenant_id=acme", "tenant_id=rival"}


async def test_of_two_exports_at_once_one_goes_on_and_nothing_is_doubled(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    slow = LakeExport(log, _AfterAnother(log, tmp_path), lake, ParquetEvents(), scope=None, batch_events=30)
    with pytest.raises(AlreadyExists):
        await slow.run()

    assert exported_events(tmp_path) == appended_events(log)
    assert check_lake(lake, ParquetEvents()).problems == []
    await export(log, lake)
    assert lake.list("_lake/pending") == []


async def test_a_lake_of_one_tenant_holds_nobody_elses_and_is_not_taken_for_anothers(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)

    done = await export(log, lake, scope=RIVAL)

    assert done.events == 26
    with pytest.raises(Corrupt, match="of 'rival/ops'"):
        await export(log, lake, scope=ACME)


async def test_a_lake_that_somebody_touched_is_told_from_one_that_nobody_did(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    await export(log, lake)
    files = files_in(tmp_path)
    files[0].write_bytes(files[0].read_bytes()[:-1] + b"x")
    files[1].rename(files[1].with_name("batch-000000000001-other.parquet"))

    problems = check_lake(lake, ParquetEvents()).problems

    assert _about(problems, files[0]) == ["its bytes are not those that were exported"]
    assert _about(problems, files[1]) == ["it is missing"]
    assert any("no batch counts it" in problem for problem in problems)


def _about(problems: Sequence[str], file: Path) -> list[str]:
    return [problem.partition(": ")[2] for problem in problems if file.name in problem]


class _AfterAnother:
    """Streams that are listed while another export does all of the work."""

    def __init__(self, log: InMemoryEventLog, root: Path) -> None:
        self._log = log
        self._root = root

    async def list_streams(
        self, scope: Scope | None, *, after: int = 0, moved_since: datetime | None = None, limit: int = 1000
    ) -> StreamPage:
        page = await self._log.list_streams(scope, after=after, moved_since=moved_since, limit=limit)
        await export(self._log, DirectoryLake(self._root))
        return page

    async def find_stream(self, scope: Scope | None, execution_id: int) -> StreamHead | None:
        return await self._log.find_stream(scope, execution_id)
