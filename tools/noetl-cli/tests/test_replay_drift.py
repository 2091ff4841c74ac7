"""Histories beside another release: what would change is named, what cannot be compared is told and stops nobody."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from noetl_cli.replay.drift import DriftReport, compare_all, history_lines
from noetl_cli.replay.other_release import FoldHere, Folding, FoldThere, NoOtherRelease, folding_with
from noetl_cli.stream_heads import PAGE, all_heads, heads_of
from noetl_contracts.clients import ReplayedState
from noetl_core.errors import Corrupt, DeadlinePassed, NoetlError, NotFound, TooLargeToReplay, Unavailable
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead, StreamPage
from noetl_core.replay.history import Replay
from noetl_core.replay.points import Point
from noetl_core.upcasting.releases import UPCASTERS
from noetl_testkit import other_releases
from noetl_testkit.histories import NOON, History, two_steps
from noetl_testkit.memory.history_log import HistoryLog

FIRST, SECOND, THIRD = 7001, 7002, 7003


class Api:
    """Replays histories of a log as api does; of some it says that it cannot."""

    def __init__(self, log: HistoryLog, refused: Mapping[int, NoetlError] | None = None) -> None:
        self._log = log
        self._refused = refused or {}

    async def state(
        self,
        scope: Scope | None,
        execution_id: int,
        point: Point,
        *,
        projection: str = "all",
        resolve_payloads: bool = False,
        from_start: bool = False,
    ) -> ReplayedState:
        assert (projection, from_start) == ("none", True)
        if execution_id in self._refused:
            raise self._refused[execution_id]
        replay = Replay(execution_id)
        page = await self._log.read(None, execution_id, to_version=point.stream_version)
        replay.take(page.events)
        told: Any = replay.result().checksums()
        return ReplayedState(
            execution_id=execution_id,
            tenant_id="default",
            organization_id="default",
            stream_version=point.stream_version,
            event_id="1",
            reached_at=NOON,
            event_checksum="e",
            head_version=page.head_version,
            format=told["format"],
            upcasters=told["upcasters"],
            snapshot_version=0,
            surfaces=told["surfaces"],
            row_counts=told["rows"],
            checksum=told["checksum"],
            payload_root="p",
            payload_count=0,
            code_version="1.0+server",
        )


def head(execution_id: int, version: int = 18) -> StreamHead:
    return StreamHead(
        execution_id=execution_id,
        tenant_id="default",
        organization_id="default",
        version=version,
        checksum="c",
        terminal=True,
        updated_at=NOON,
    )


def log_of(*execution_ids: int) -> HistoryLog:
    return HistoryLog(*(two_steps(History(one)) for one in execution_ids))


async def compared(log: HistoryLog, folding: Folding, refused: Mapping[int, NoetlError] | None = None) -> DriftReport:
    told: list[tuple[int, int]] = []
    heads = [head(one) for one in log.histories]
    report = await compare_all(
        Api(log, refused), log, heads, folding, left_out=0, progress=lambda *so_far: told.append(so_far)
    )
    assert told == [(place, 18 * place) for place in range(1, len(heads) + 1)]
    return report


async def test_another_fold_is_found_and_the_execution_and_the_surface_are_named(tmp_path: Path) -> None:
    async with folding_with(path=other_releases.with_another_fold(tmp_path), python=None) as folding:
        report = await compared(log_of(FIRST), folding)

    (drifted,) = report.drifted
    assert (drifted.execution_id, drifted.stream_version, drifted.drifted) == (FIRST, 18, ("commands",))
    assert drifted.upcasters[0] == drifted.upcasters[1]
    assert (report.is_clean, report.is_complete) == (False, True)
    assert [*report.lines()][-2:] == [f"{FIRST}       18       commands", "1 of 1 executions would change"]


async def test_another_upcaster_is_found_and_the_execution_and_the_surface_are_named(tmp_path: Path) -> None:
    async with folding_with(path=other_releases.with_another_upcaster(tmp_path), python=None) as folding:
        report = await compared(log_of(FIRST), folding)

    (drifted,) = report.drifted
    assert (drifted.execution_id, drifted.drifted, drifted.error) == (FIRST, ("execution",), "")
    assert drifted.upcasters[0] != drifted.upcasters[1]


async def test_the_same_code_at_another_place_sees_the_same(tmp_path: Path) -> None:
    async with folding_with(path=other_releases.as_it_is(tmp_path), python=None) as folding:
        report = await compared(log_of(FIRST, SECOND), folding)

    assert (report.is_clean, report.is_complete, report.executions) == (True, True, 2)


@pytest.mark.parametrize(
    "error",
    [
        TooLargeToReplay("execution 7002 has more than 500000 rows"),
        Corrupt("version 7 of execution 7002 does not follow the event before it"),
        NotFound("execution", SECOND, code="execution.not_found"),
        DeadlinePassed("it took too long"),
        NoetlError("an unexpected failure"),
    ],
)
async def test_a_history_that_the_server_cannot_replay_is_told_and_the_others_are_compared(error: NoetlError) -> None:
    report = await compared(log_of(FIRST, SECOND, THIRD), FoldHere(), {SECOND: error})

    (told,) = report.to_json()["not_comparable"]
    assert told == {"execution_id": "7002", "stream_version": 18, "code": error.code, "reason": error.message}
    assert (report.executions, report.drifted) == (3, [])
    assert (report.is_clean, report.is_complete) == (False, False)
    assert any(error.code in line and "7002" in line for line in report.lines())
    assert "1 could not be compared: nobody knows whether they would change" in [*report.lines()]


async def test_what_is_no_matter_of_one_history_ends_the_whole_and_says_how_far_it_came() -> None:
    with pytest.raises(Unavailable) as refusal:
        await compared(log_of(FIRST, SECOND), FoldHere(), {SECOND: Unavailable("api is away")})

    assert refusal.value.__notes__ == ["at execution 7002, after 1 of 2"]


class Interrupted(HistoryLog):
    """Gives a history in pieces of five events, and one of them only half."""

    async def read(self, *arguments: Any, **named: Any) -> Any:
        execution_id, first = arguments[1], named.get("from_version", 1)
        if execution_id == SECOND and first > 5:
            raise Corrupt("the rest cannot be read")
        return await super().read(*arguments, **{**named, "limit": 5 if "limit" in named else 500})


async def test_half_a_history_is_not_added_to_the_next_one(tmp_path: Path) -> None:
    log = Interrupted(*(two_steps(History(one)) for one in (FIRST, SECOND, THIRD)))
    async with folding_with(path=other_releases.as_it_is(tmp_path), python=None) as folding:
        report = await compared(log, folding)

    assert [one.execution_id for one in report.not_comparable] == [SECOND]
    assert report.drifted == []


async def test_a_history_that_ends_the_other_process_is_told_and_the_others_are_compared(tmp_path: Path) -> None:
    other = other_releases.as_it_is(tmp_path)
    file = tmp_path / "noetl_cli" / "replay" / "fold_lines.py"
    marked = "event = read_event_line(line)"
    assert marked in file.read_text()
    ends = f"if {str(SECOND)!r} in str(event.body):\n                    raise SystemExit(1)"
    file.write_text(file.read_text().replace(marked, f"{marked}\n                {ends}"))

    async with folding_with(path=other, python=None) as folding:
        report = await compared(log_of(FIRST, SECOND, THIRD), folding)

    assert [(one.execution_id, one.code) for one in report.not_comparable] == [(SECOND, "replay.not_folded")]
    assert (report.executions, report.drifted) == (3, [])


async def test_without_an_other_release_nothing_is_compared(tmp_path: Path) -> None:
    (tmp_path / "noetl_cli").mkdir()
    (tmp_path / "noetl_cli" / "__init__.py").touch()

    for path, python in (
        (str(tmp_path), None),
        (None, str(tmp_path / "python")),
        (None, ""),
        ("", None),
        (":", None),
    ):
        with pytest.raises(NoOtherRelease):
            async with folding_with(path=path, python=python):
                pass


async def test_a_pythonpath_without_the_other_release_is_refused_and_not_replaced_by_this_one(tmp_path: Path) -> None:
    other = other_releases.as_it_is(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    for path, told in (
        (str(tmp_path / "empty"), "nothing of NoETL lies in"),
        (str(tmp_path / "misspelt"), "does not exist"),
        (f"{other}:{tmp_path / 'misspelt'}", "does not exist"),
    ):
        with pytest.raises(NoOtherRelease, match=told):
            async with folding_with(path=path, python=None):
                pass


async def test_an_interpreter_is_asked_for_its_own_release_and_not_for_that_of_this_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = other_releases.as_it_is(tmp_path)
    monkeypatch.setenv("PYTHONPATH", here)

    async with folding_with(path=None, python=sys.executable) as folding:
        code = await folding.code()

    assert not code.is_below([Path(here)])


async def test_what_is_compared_stands_above_everything_else(tmp_path: Path) -> None:
    async with folding_with(path=other_releases.with_another_fold(tmp_path), python=None) as folding:
        report = await compared(log_of(FIRST, SECOND), folding)
    here = await FoldHere().code()

    told = report.to_json()
    assert told["servers"] == [{"code_version": "1.0+server", "upcasters": UPCASTERS.digest}]
    assert told["other"]["places"] == {
        "noetl_core": str(tmp_path / "noetl_core" / "__init__.py"),
        "noetl_cli": str(tmp_path / "noetl_cli" / "__init__.py"),
    }
    assert told["other"]["upcasters"] == here.upcasters == UPCASTERS.digest
    assert told["other"]["code_version"] not in (None, here.code_version)
    assert [*report.lines()][:3] == [
        f"server 1.0+server, upcasters {UPCASTERS.digest}",
        f"other  {told['other']['code_version']}, upcasters {UPCASTERS.digest}",
        f"       noetl_core from {tmp_path}/noetl_core/__init__.py",
    ]


@pytest.mark.parametrize("answer", ["nonsense", "[]", '{"format": 1}'])
async def test_an_answer_that_is_no_document_is_told(tmp_path: Path, answer: str) -> None:
    (tmp_path / "noetl_cli" / "replay").mkdir(parents=True)
    for place in ("noetl_cli", "noetl_cli/replay"):
        (tmp_path / place / "__init__.py").touch()
    (tmp_path / "noetl_cli/replay/fold_lines.py").write_text(
        "import sys\n"
        "size = 0\n"
        "for line in sys.stdin.buffer:\n"
        "    size += 1\n"
        "    if line == b'\\n':\n"
        f"        print('{{}}' if size == 1 else {answer!r}, flush=True)\n"
        "        size = 0\n"
    )
    there = FoldThere(path=str(tmp_path), python=None)
    try:
        report = await compared(log_of(FIRST, SECOND), there)
    finally:
        await there.stop()

    assert [one.code for one in report.not_comparable] == ["replay.not_folded"] * 2


async def test_events_that_are_gone_are_no_drift() -> None:
    log = log_of(FIRST)

    class Shortened(HistoryLog):
        async def read(self, *arguments: Any, **named: Any) -> Any:
            page = await log.read(*arguments, **named)
            return replace(page, events=page.events[:3] if named.get("from_version") == 1 else ())

    heads = [head(FIRST)]
    report = await compare_all(Api(log), Shortened(), heads, FoldHere(), left_out=0, progress=lambda *_: None)

    assert [one.code for one in report.not_comparable] == [Corrupt.code]


async def test_a_history_with_a_gap_is_printed_up_to_it_and_the_gap_is_named() -> None:
    class WithGap(HistoryLog):
        async def read(self, *arguments: Any, from_version: int = 1, **named: Any) -> Any:
            page = await super().read(*arguments, from_version=from_version, **named)
            return replace(page, events=tuple(event for event in page.events if event.stream_version != 4))

    printed: list[int] = []
    with pytest.raises(Corrupt, match="no event at version 4"):
        async for line in history_lines(WithGap(*log_of(FIRST).histories.values()), FIRST):
            printed.append(json.loads(line)["stream_version"])

    assert printed == [1, 2, 3]


async def test_a_history_that_was_changed_since_the_server_replayed_it_says_nothing_of_the_other_release() -> None:
    log, changed = log_of(FIRST), log_of(FIRST)
    stored = changed.histories[FIRST].stored
    stored[6] = stored[6]._replace(body=stored[6].body.replace(b"first", b"other"))
    swapped = log_of(FIRST)
    events = swapped.histories[FIRST].stored
    events[6], events[7] = events[7], events[6]

    for other in (changed, swapped):
        report = await compare_all(Api(log), other, [head(FIRST)], FoldHere(), left_out=0, progress=lambda *_: None)

        assert [one.code for one in report.not_comparable] == [Corrupt.code]
        assert report.drifted == []


class Streams:
    """So many streams, in pages."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    async def list_streams(
        self, scope: Scope | None, *, after: int = 0, moved_since: datetime | None = None, limit: int = 1000
    ) -> StreamPage:
        following = [one for one in self._ids if one > after]
        page = tuple(head(one, 1) for one in following[:limit])
        return StreamPage(heads=page, now=NOON, more=len(following) > limit)

    async def find_stream(self, scope: Scope | None, execution_id: int) -> StreamHead | None:
        return head(execution_id) if execution_id in self._ids else None


async def test_all_executions_are_all_of_them_however_many_pages_they_have() -> None:
    count = 2 * PAGE + 3

    heads = await all_heads(Streams(range(1, count + 1)))

    assert [one.execution_id for one in heads] == [*range(1, count + 1)]


async def test_those_that_are_named_are_taken_once_and_one_that_there_is_not_is_refused() -> None:
    streams = Streams([FIRST, SECOND])

    assert [one.execution_id for one in await heads_of(streams, [SECOND, FIRST, SECOND])] == [SECOND, FIRST]
    with pytest.raises(NotFound):
        await heads_of(streams, [FIRST, THIRD])


async def test_what_a_limit_leaves_out_is_counted_and_nothing_is_called_complete() -> None:
    log = log_of(THIRD)
    report = await compare_all(Api(log), log, [head(THIRD)], FoldHere(), left_out=2, progress=lambda *_: None)

    assert report.to_json() == {
        "servers": [{"code_version": "1.0+server", "upcasters": UPCASTERS.digest}],
        "other": (await FoldHere().code()).to_json(),
        "executions": 1,
        "complete": False,
        "left_out": 2,
        "drifted": [],
        "not_comparable": [],
    }
    assert [*report.lines()][-1] == "2 older ones were left out by --limit: nobody knows whether they would change"


async def test_a_history_that_the_other_release_cannot_read_would_change() -> None:
    class Refuses(FoldHere):
        async def fold(self, lines: AsyncIterator[bytes]) -> Mapping[str, Any]:
            return {"error": "Corrupt: playbook.initialized lacks 'path'"}

    report = await compared(log_of(FIRST), Refuses())

    assert [one.error for one in report.drifted] == ["Corrupt: playbook.initialized lacks 'path'"]
    assert not report.is_clean
