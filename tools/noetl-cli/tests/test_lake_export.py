"""An export that is stopped anywhere, or runs twice at once, leaves every event in exactly one file."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from noetl_adapters.lake.lake_files import DirectoryLake
from noetl_adapters.lake.parquet_events import ParquetEvents
from noetl_adapters.lake.write_slice import InlineSlices, write_slice
from noetl_cli.__main__ import run
from noetl_cli.lake.check import check_lake
from noetl_cli.lake.export import Exported, LakeExport, Missing
from noetl_core.canonical import encode, sha256_hex
from noetl_core.errors import AlreadyExists, Corrupt, LakeDiverged, Unavailable
from noetl_core.lake.manifest import (
    EVENTS,
    MANIFESTS,
    PENDING,
    POSITIONS,
    LakeFile,
    Manifest,
    Position,
    manifest_path,
    pending_path,
)
from noetl_core.lake.slices import Slice, WrittenSlice, cut
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


class DisturbedLake(DirectoryLake):
    """Something happens before, or just after, its nth change."""

    def __init__(self, root: Path, happens: Callable[[], None], *, at: int, after: bool) -> None:
        super().__init__(root)
        self._happens = happens
        self.left = at
        self._after = after

    def write(self, path: str, data: bytes) -> None:
        self._change(lambda: super(DisturbedLake, self).write(path, data))

    def create(self, path: str, data: bytes) -> None:
        self._change(lambda: super(DisturbedLake, self).create(path, data))

    def move(self, path: str, target: str, *, size: int) -> None:
        self._change(lambda: super(DisturbedLake, self).move(path, target, size=size))

    def remove(self, path: str) -> None:
        self._change(lambda: super(DisturbedLake, self).remove(path))

    def _change(self, change: Callable[[], None]) -> None:
        self.left -= 1
        now = self.left == 0
        if now and not self._after:
            self._happens()
        change()
        if now and self._after:
            self._happens()


def is_killed() -> None:
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
    one = LakeExport(lake, ParquetEvents(), scope=scope, batch_events=30, positions_every=2)
    return await one.run(await one.look(log), InlineSlices(log, lake, ParquetEvents()))


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
            await export(log, DisturbedLake(root, is_killed, at=dies_at, after=after))
        except Killed:
            assert max(exported_events(root).values(), default=0) <= 1, "what is seen before it goes on"
            assert check_lake(DirectoryLake(root), ParquetEvents()).problems == [], "what counts is all there"
            await export(log, DirectoryLake(root))
        else:
            break
        assert_whole(root, log)
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


@pytest.mark.parametrize("ahead", [False, True], ids=["both began from nothing", "the other looks when it comes"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_of_two_exports_at_once_one_goes_on_and_nothing_is_doubled(
    tmp_path: Path, after: bool, ahead: bool
) -> None:
    """Whatever the one was about to do when the other came: both write the same files, and one of them counts."""
    log = await some_log()
    gave_way = 0
    for at in range(1, 100):
        root = tmp_path / str(at)
        other = LakeExport(DirectoryLake(root), ParquetEvents(), scope=None, batch_events=30, positions_every=2)
        seen = None if ahead else await other.look(log)

        def other_export(root: Path = root, other: LakeExport = other, seen: Missing | None = seen) -> None:
            run_apart(other, seen, log, DirectoryLake(root))

        lake = DisturbedLake(root, other_export, at=at, after=after)
        try:
            await export(log, lake)
        except AlreadyExists:
            gave_way += 1
        if lake.left > 0:
            break
        await export(log, DirectoryLake(root))
        assert_whole(root, log)
    assert 0 < gave_way < at, "each of them came second at some point"


def run_apart(one: LakeExport, seen: Missing | None, log: InMemoryEventLog, lake: DirectoryLake) -> None:
    """In a loop of its own, from within another export; which of them is told that it came second does not matter."""

    async def both() -> None:
        with suppress(AlreadyExists):
            await one.run(seen or await one.look(log), InlineSlices(log, lake, ParquetEvents()))

    thread = threading.Thread(target=lambda: asyncio.run(both()))
    thread.start()
    thread.join()


def assert_whole(root: Path, log: InMemoryEventLog) -> None:
    """Every event once, proved, and nothing beside it."""
    lake = DirectoryLake(root)
    assert exported_events(root) == appended_events(log)
    assert check_lake(lake, ParquetEvents()).problems == []
    assert [*lake.list(PENDING), *lake.list_unfinished("")] == []


class Backwards:
    """Three slices at once, as tasks may do it, and the one whose turn it is ends last."""

    at_once = 3

    def __init__(self, log: InMemoryEventLog, lake: DirectoryLake, *, fails: int = 0) -> None:
        self._inline = InlineSlices(log, lake, ParquetEvents())
        self._fails = fails
        self._ended = {batch: asyncio.Event() for batch in (2, 3)}

    async def write(self, one: Slice) -> WrittenSlice:
        if one.batch + 1 in self._ended:
            await self._ended[one.batch + 1].wait()
        if one.batch == self._fails:
            raise Unavailable("api is away")
        written = await self._inline.write(one)
        self._ended.get(one.batch, asyncio.Event()).set()
        return written


async def test_slices_that_end_in_another_order_count_in_theirs(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path / "one")
    one = LakeExport(lake, ParquetEvents(), scope=None, batch_events=30, positions_every=2)
    await one.run(await one.look(log), Backwards(log, lake))
    await export(log, DirectoryLake(tmp_path / "other"))

    assert_whole(tmp_path / "one", log)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "other"), "whoever writes them"


async def test_what_comes_before_a_slice_that_fails_counts_and_the_rest_is_done_by_the_next_run(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    one = LakeExport(lake, ParquetEvents(), scope=None, batch_events=30, positions_every=2)
    with pytest.raises(Unavailable, match="api is away"):
        await one.run(await one.look(log), Backwards(log, lake, fails=4))

    assert exported_events(tmp_path).total() == 90
    assert (await export(log, lake)).events == 14
    assert_whole(tmp_path, log)


async def test_files_that_only_a_task_can_see_are_never_counted(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path / "lake")
    one = LakeExport(lake, ParquetEvents(), scope=None)
    with pytest.raises(Unavailable, match="share the lake's place"):
        await one.run(await one.look(log), InlineSlices(log, DirectoryLake(tmp_path / "other"), ParquetEvents()))

    assert lake.list(MANIFESTS) == []


async def test_a_slice_of_large_events_becomes_several_files_which_are_the_same_each_time(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    seen = await LakeExport(lake, ParquetEvents(), scope=None).look(log)
    (one,) = cut(seen.ranges, events=1000, first_batch=1)
    size = max(len(event.body) for stream in log.streams.values() for event in stream.events)

    whole = await write_slice(log, lake, ParquetEvents(), one)
    parts = await write_slice(log, lake, ParquetEvents(), one, file_bytes=10 * size)
    again = await write_slice(log, lake, ParquetEvents(), one, file_bytes=10 * size)

    assert len(whole.files) < 4
    assert len(parts.files) >= 10
    assert parts == again
    assert sum(file.rows for file in parts.files) == 104
    assert max(file.rows for file in parts.files) <= 20


@pytest.mark.parametrize("batch_events", [7, 1000], ids=["cut", "whole"])
async def test_a_history_that_somebody_changed_is_not_taken_for_one_that_nobody_did(
    tmp_path: Path, batch_events: int
) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    execution_id, stream = next(iter(log.streams.items()))
    foreign = next(reversed(log.streams.values()))
    for victim in range(1, 26):
        events = list(stream.events)
        stream.events[victim] = foreign.events[victim]
        one = LakeExport(lake, ParquetEvents(), scope=None, batch_events=batch_events)
        with pytest.raises(Corrupt, match=f"execution {execution_id}"):
            await one.run(await one.look(log), InlineSlices(log, lake, ParquetEvents()))
        stream.events[:] = events
        for path in (*lake.list(MANIFESTS), *lake.list(EVENTS)):
            lake.remove(path)


def bytes_of(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in files_in(root)}


async def test_a_lake_of_one_tenant_holds_nobody_elses_and_is_not_taken_for_anothers(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)

    done = await export(log, lake, scope=RIVAL)

    assert done.events == 26
    with pytest.raises(Corrupt, match="of 'rival/ops'"):
        await export(log, lake, scope=ACME)


class SeenBy:
    """api, for a token that is bound to a tenant: who names nobody is shown that one's."""

    def __init__(self, log: InMemoryEventLog, scope: Scope) -> None:
        self._log = log
        self._scope = scope

    async def list_streams(
        self, scope: Scope | None, *, after: int = 0, moved_since: datetime | None = None, limit: int = 1000
    ) -> StreamPage:
        whose = scope or self._scope
        return await self._log.list_streams(whose, after=after, moved_since=moved_since, limit=limit)

    async def find_stream(self, scope: Scope | None, execution_id: int) -> StreamHead | None:
        return await self._log.find_stream(scope or self._scope, execution_id)


async def test_a_lake_that_names_no_tenant_is_of_the_tenant_of_the_token_and_no_other_token_goes_on_with_it(
    tmp_path: Path,
) -> None:
    """Else what another tenant did before the last export would count as seen, and be missed for ever."""
    log, lake = await some_log(), DirectoryLake(tmp_path)
    one = LakeExport(lake, ParquetEvents(), scope=None)

    done = await one.run(await one.look(SeenBy(log, RIVAL)), InlineSlices(log, lake, ParquetEvents()))

    assert done.events == 26
    for other in (SeenBy(log, ACME), log):
        with pytest.raises(Corrupt, match="of 'rival/ops'"):
            await one.look(other)
    assert (await export(log, lake, scope=RIVAL)).events == 0, "it is the same lake for whoever names the tenant"


async def test_a_lake_that_names_no_tenant_is_of_all_of_them_for_a_token_of_all_of_them(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    await export(log, lake)
    one = LakeExport(lake, ParquetEvents(), scope=None)

    with pytest.raises(Corrupt, match=r"of '\*', not of 'acme/ops'"):
        await one.look(SeenBy(log, ACME))


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


async def test_a_lake_is_verified_while_an_export_adds_to_it(tmp_path: Path) -> None:
    log = await some_log()
    await export(log, DirectoryLake(tmp_path))
    for execution_id in list(log.streams)[:3]:
        await append_notes(log, execution_id, "later", 20)
    seen = await LakeExport(DirectoryLake(tmp_path), ParquetEvents(), scope=None).look(log)

    def other_export() -> None:
        lake = DirectoryLake(tmp_path)
        run_apart(LakeExport(lake, ParquetEvents(), scope=None), seen, log, lake)

    read_meanwhile = AddedToWhileRead(tmp_path, other_export)
    assert check_lake(read_meanwhile, ParquetEvents()).problems == []

    assert_whole(tmp_path, log)


class AddedToWhileRead(DirectoryLake):
    """Something happens before its first file is read."""

    def __init__(self, root: Path, happens: Callable[[], None]) -> None:
        super().__init__(root)
        self._left = [happens]

    def read(self, path: str) -> bytes:
        if self._left:
            self._left.pop()()
        return super().read(path)


async def test_a_file_that_gets_its_place_while_it_is_looked_for_is_not_missing(tmp_path: Path) -> None:
    log = await some_log()
    with pytest.raises(Killed):
        await export(log, DiesAfterTheManifestOf(tmp_path, batch=1))

    class GoesOn(DirectoryLake):
        def read(self, path: str) -> bytes:
            if path.startswith(PENDING):
                run_apart(LakeExport(self, ParquetEvents(), scope=None), None, log, DirectoryLake(tmp_path))
            return super().read(path)

    assert check_lake(GoesOn(tmp_path), ParquetEvents()).problems == []


def test_where_nothing_was_ever_exported_to_there_is_no_lake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lake", "verify", str(tmp_path / "typo")]) != 0

    assert f"lake '{tmp_path}/typo' does not exist" in capsys.readouterr().err


def _about(problems: Sequence[str], file: Path) -> list[str]:
    return [problem.partition(": ")[2] for problem in problems if file.name in problem]


@pytest.mark.parametrize("more", [0, 3, 5, 20], ids=["behind", "still behind", "as far", "beyond"])
@pytest.mark.parametrize("positions_every", [1, 64], ids=["positions from their file", "positions from manifests"])
async def test_a_log_that_was_restored_and_went_on_otherwise_is_not_added_to_the_lake(
    tmp_path: Path, more: int, positions_every: int
) -> None:
    log, lake = InMemoryEventLog(clock=Clock()), DirectoryLake(tmp_path)
    execution_id = await start(log, scope=ACME)
    await append_notes(log, execution_id, "kept", 5)
    backup = copy.deepcopy(log.streams)
    await append_notes(log, execution_id, "lost", 5)
    one = LakeExport(lake, ParquetEvents(), scope=None, batch_events=30, positions_every=positions_every)
    await one.run(await one.look(log), InlineSlices(log, lake, ParquetEvents()))
    log.streams.clear()
    log.streams.update(backup)
    await append_notes(log, execution_id, "other", more)

    async def again() -> Exported:
        return await one.run(await one.look(log), InlineSlices(log, lake, ParquetEvents()))

    if more:
        with pytest.raises(LakeDiverged, match=f"execution {execution_id}: .*begin another lake"):
            await again()
    else:
        assert (await again()).events == 0, "it has not moved since, so nobody looks at it"
    assert check_lake(lake, ParquetEvents()).problems == []
    assert exported_events(tmp_path).total() == 11


@pytest.mark.parametrize("what", ["an execution that is behind", "an execution that is gone", "nothing"])
async def test_on_another_branch_of_the_log_all_heads_are_compared_whether_they_moved_or_not(
    tmp_path: Path, what: str
) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    backup = copy.deepcopy(log.streams)
    execution_id = next(iter(log.streams))
    if what == "an execution that is behind":
        await append_notes(log, execution_id, "lost", 3)
    elif what == "an execution that is gone":
        execution_id = await start(log, scope=ACME)
    await export(log, lake)
    log.streams.clear()
    log.streams.update(backup)
    log.log_branch = "2"

    if what == "nothing":
        assert (await export(log, lake)).events == 0
        await append_notes(log, execution_id, "later", 2)
        assert (await export(log, lake)).events == 2
        assert_whole(tmp_path, log)
        assert Manifest.from_bytes(lake.read(lake.list(MANIFESTS)[-1])).log_branch == "2"
    else:
        with pytest.raises(LakeDiverged, match=f"execution {execution_id}: the lake has events up to"):
            await export(log, lake)


async def test_a_first_run_on_another_branch_that_is_killed_does_not_leave_the_clock_of_the_one_before(
    tmp_path: Path,
) -> None:
    """The server that was lost was an hour ahead: by its clock, nothing has moved since the last export."""
    clock = Clock()
    log, lake = InMemoryEventLog(clock=clock), DirectoryLake(tmp_path)
    ids = [await start(log, scope=ACME) for _ in range(4)]
    for execution_id in ids:
        await append_notes(log, execution_id, "early", 10)
    clock.now += timedelta(hours=1)
    assert (await export(log, lake)).batches == 2
    clock.now -= timedelta(hours=1)
    log.log_branch = "2"
    for execution_id in ids:
        await append_notes(log, execution_id, "later", 25)

    with pytest.raises(Killed):
        await export(log, DiesAfterTheManifestOf(tmp_path, batch=3))
    await export(log, lake)

    assert_whole(tmp_path, log)


class DiesAfterTheManifestOf(DirectoryLake):
    """It counts, and its files wait for their places."""

    def __init__(self, root: Path, *, batch: int) -> None:
        super().__init__(root)
        self._last = manifest_path(batch)

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if path == self._last:
            raise Killed


async def test_what_was_committed_before_an_export_and_seen_long_after_it_is_found_when_all_heads_are_compared(
    tmp_path: Path,
) -> None:
    """As a commit that waited for a standby while nothing else did."""
    clock = Clock()
    log, lake = InMemoryEventLog(clock=clock), DirectoryLake(tmp_path)
    seen, unseen = await start(log, scope=ACME), await start(log, scope=ACME)
    hidden = log.streams.pop(unseen)
    clock.now += timedelta(minutes=1)
    await export(log, lake)
    log.streams[unseen] = hidden
    events = []
    for hours in (10, 20, 30):
        clock.now += timedelta(hours=10)
        await append_notes(log, seen, f"{hours} hours later", 1)
        events.append((await export(log, lake)).events)

    assert events == [1, 1, 2]
    assert_whole(tmp_path, log)
    compared = [Manifest.from_bytes(lake.read(path)).compared_at for path in lake.list(MANIFESTS)]
    assert compared[0] == compared[1] == compared[2]
    assert compared[3] is not None
    assert compared[0] is not None
    assert compared[3] > compared[0]


async def test_a_log_that_another_server_has_while_its_heads_are_listed_is_not_taken_for_one(tmp_path: Path) -> None:
    log = await some_log()

    class Promoted(SeenBy):
        async def list_streams(self, scope: Scope | None, **which: Any) -> StreamPage:
            page = await super().list_streams(scope, **which)
            log.log_branch = "2"
            return page

    with pytest.raises(Unavailable, match="run the export again"):
        await LakeExport(DirectoryLake(tmp_path), ParquetEvents(), scope=None).look(Promoted(log, ACME))


async def append_notes(log: InMemoryEventLog, execution_id: int, name: str, number: int) -> None:
    for key in range(number):
        await log.append(request(execution_id, note(f"{name} {key}"), scope=ACME))


async def test_a_lake_of_a_release_that_knew_no_checksums_is_added_to(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    await export(log, lake)
    for path in lake.list(MANIFESTS):
        fields = json.loads(lake.read(path))
        del fields["checksums"], fields["log_branch"], fields["compared_at"]
        previous = fields["previous_sha256"] and sha256_hex(lake.read(manifest_path(fields["batch"] - 1)))
        lake.write(path, encode({**fields, "previous_sha256": previous}))
    for execution_id, stream in list(log.streams.items()):
        scope = Scope(tenant_id=stream.head.tenant_id, organization_id=stream.head.organization_id)
        await log.append(request(execution_id, note("later"), scope=scope))

    assert (await export(log, lake)).events == 4
    assert_whole(tmp_path, log)


def test_positions_of_a_release_that_knew_no_checksums_are_read() -> None:
    old, sink = pa.table({"execution_id": [1, 2], "stream_version": [3, 4]}), pa.BufferOutputStream()
    pq.write_table(old, sink)
    new = {1: Position(version=3, checksum="a"), 2: Position(version=4)}

    assert ParquetEvents().decode_positions(sink.getvalue().to_pybytes()) == {
        1: Position(version=3),
        2: Position(version=4),
    }
    assert ParquetEvents().decode_positions(ParquetEvents().encode_positions(new)) == new


async def test_positions_that_somebody_changed_are_not_believed(tmp_path: Path) -> None:
    log, lake = await some_log(), DirectoryLake(tmp_path)
    await export(log, lake)
    for path in lake.list(POSITIONS):
        lake.write(path, ParquetEvents().encode_positions({1: Position(version=1)}))

    with pytest.raises(Corrupt, match="not those that were written"):
        await export(log, lake)


@pytest.mark.parametrize("path", ["../victim", "{outside}/victim"])
async def test_a_manifest_cannot_have_an_export_write_outside_of_its_lake(tmp_path: Path, path: str) -> None:
    victim, root = tmp_path / "victim", tmp_path / "lake"
    victim.write_text("precious")
    lake, data = DirectoryLake(root), b"owned"
    lake.write(pending_path(1, sha256_hex(data)), data)
    file = LakeFile(path=path.format(outside=tmp_path), rows=1, bytes=len(data), sha256=sha256_hex(data))
    lake.create(manifest_path(1), Manifest(batch=1, scope="*", files=(file,)).to_bytes())

    with pytest.raises(Corrupt, match="no place of a file of events"):
        await export(await some_log(), lake)

    assert victim.read_text() == "precious"
    assert "no place of a file of events" in check_lake(lake, ParquetEvents()).problems[0]
