from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.canonical import encode
from noetl_core.catalog import is_terminal
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.evidence.live import LiveState
from noetl_core.evidence.verdict import HistoryCheck
from noetl_core.evidence.verify_executions import BATCH_EVENTS, BATCH_EXECUTIONS, VerifyExecutions, batches
from noetl_core.execution_view import late_after
from noetl_core.executions.events import ExecutionCancelled, StepEntered
from noetl_core.loops.events import LoopStarted
from noetl_core.ports.event_columns import ColumnPage, Place
from noetl_core.ports.event_log import EventPage, Scope
from noetl_core.ports.live_rows import ExecutionColumns, RowPage, RowPlace
from noetl_core.ports.projection_store import ProjectedExecution
from noetl_core.ports.streams import StreamHead
from noetl_core.sharding import shard_of
from noetl_core.surfaces.shapes import Surface
from noetl_core.upcasting.releases import UPCASTERS
from noetl_testkit.compliance.projections import limited, projected, running
from noetl_testkit.frame_histories import drawn_frame_history
from noetl_testkit.histories import EXECUTION, NOON, History, choices, drawn_history, initialized
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.telling_histories import telling_history

SHARDS = 64


class Rows:
    """Stored rows, three a page; before a page is read a projector may write."""

    def __init__(self) -> None:
        self.store = InMemoryProjections()
        self.written: list[tuple[History, int, int]] = []
        """What is written before each page: a history, from which version to which."""
        self.replaced: list[ProjectedExecution] = []
        """What is made again after each page."""
        self.asked: list[Mapping[int, int]] = []
        self.untold = False
        """Whether they come from a projector of a release that does not tell columns."""

    async def list_rows(
        self,
        scope: Scope | None,
        wanted: Mapping[int, int],
        *,
        after: RowPlace | None = None,
        wait_seconds: float = 0.0,
    ) -> RowPage:
        self.asked.append(wanted)
        listed = await self.store.list_rows(scope, wanted.keys(), after=after, limit=3)
        page = replace(listed, columns={}) if self.untold else replace(listed, shard_count=SHARDS)
        if self.written:
            history, known, through = self.written.pop(0)
            await self.store.write([projected(history, after=known, through=through)])
        if self.replaced:
            await self.store.write([self.replaced.pop(0)])
        return page


def head_of(history: History, version: int | None = None) -> StreamHead:
    last = history.stored[(version or len(history.stored)) - 1]
    return StreamHead(
        execution_id=history.execution_id,
        tenant_id="default",
        organization_id="default",
        version=last.stream_version,
        checksum=last.checksum,
        terminal=any(is_terminal(event.envelope().event_type) for event in history.stored[: last.stream_version]),
        updated_at=NOON,
    )


async def test_several_executions_are_proved_together() -> None:
    histories = [telling_history(choices(seed), execution_id=EXECUTION + seed) for seed in range(5)]
    rows = Rows()
    await rows.store.write([projected(history) for history in histories])

    verified = await VerifyExecutions(HistoryLog(*histories), rows)([head_of(one) for one in histories])

    assert [one.verdict.execution_id for one in verified] == [one.execution_id for one in histories]
    assert all(one.verdict.is_proved for one in verified), [one.verdict for one in verified]
    assert [one.verdict.events for one in verified] == [len(one.stored) for one in histories]


async def test_an_execution_that_moves_while_its_rows_are_read_is_read_again_and_compared_where_it_stands() -> None:
    history = telling_history(choices(3))
    length = len(history.stored)
    rows = Rows()
    await rows.store.write([projected(history, through=length - 4)])
    rows.written = [(history, length - 4, length - 2), (history, length - 2, length)]

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history, length - 4)])

    assert verified.verdict.is_proved, verified.verdict.findings
    assert verified.verdict.version == length


async def test_rows_that_are_made_again_while_they_are_read_are_read_again_though_they_have_the_same_version() -> None:
    history = telling_history(choices(3))
    rows = Rows()
    await rows.store.write([projected(history, upcasters="0" * 64)])
    rows.replaced = [projected(history, replaces=len(history.stored))]

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history)])

    assert verified.verdict.is_proved, verified.verdict.findings
    assert verified.verdict.live_upcasters == verified.verdict.upcasters == UPCASTERS.digest


async def test_rows_of_another_registry_are_told_and_proved_if_they_come_to_the_same() -> None:
    history = telling_history(choices(3))
    rows = Rows()
    await rows.store.write([projected(history, upcasters="0" * 64)])

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history)])

    assert verified.verdict.is_proved
    assert verified.verdict.is_of_another_registry
    assert verified.verdict.live_upcasters == "0" * 64


def ran_late() -> History:
    """A step with a deadline that nobody has heard of."""
    return limited(History(EXECUTION))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"next_deadline": None}, "next_deadline of the execution is none and should be 2026-"),
        ({"next_deadline": NOON + timedelta(days=9)}, "next_deadline of the execution is 2026-"),
        ({"shard": 64}, f"shard of the execution is 64 and should be {shard_of(EXECUTION, SHARDS)}"),
    ],
)
async def test_a_deadline_or_a_shard_that_somebody_changed_is_a_finding_though_no_checksum_has_it(
    changed: dict[str, Any], told: str
) -> None:
    history, rows = ran_late(), Rows()
    await rows.store.write([projected(history)])
    (proved,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history)])
    rows.store.executions[EXECUTION] = replace(rows.store.executions[EXECUTION], **changed)

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history)])

    assert proved.verdict.is_proved, proved.verdict.findings
    (finding,) = verified.verdict.findings
    assert (finding.code, finding.surface) == ("parity.column_differs", "execution")
    assert told in finding.message
    assert verified.verdict.live == verified.verdict.replayed == proved.verdict.live


async def test_a_deadline_that_nothing_has_is_a_finding() -> None:
    history, rows = ended_history(), Rows()
    await rows.store.write([projected(history)])
    rows.store.executions[EXECUTION] = replace(rows.store.executions[EXECUTION], next_deadline=NOON)

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history)])

    (finding,) = verified.verdict.findings
    assert "and should be none" in finding.message


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_wherever_batches_begin_a_deadline_is_what_the_log_gives(seed: int) -> None:
    choose = choices(seed)
    draw = choose.choice([telling_history, drawn_history, drawn_frame_history])
    history = draw(choose)
    cut = choose.randint(0, len(history.stored) - 1)
    through = choose.randint(cut + 1, len(history.stored))

    stored = projected(history, after=cut, through=through)
    check = HistoryCheck(history.execution_id)
    check.take(history.stored[:through])

    replayed = check.replayed()
    assert replayed is not None
    assert late_after(stored.state) == late_after(replayed.state)


def test_a_deadline_after_all_times_is_told_and_breaks_nothing() -> None:
    history = History(started_at=datetime(9999, 12, 31, 23, 59, 50, tzinfo=UTC)).add(
        initialized(),
        StepEntered(step="each", activation=1),
        LoopStarted(
            loop_id="1", step="each", activation=1, mode="parallel", collection_size=1, max_in_flight=1, items=(1,)
        ),
        ExecutionCancelled(reason="enough", cancelled_by="ada"),
    )
    check = HistoryCheck(EXECUTION)
    check.take(history.stored)
    live = LiveState(EXECUTION, check.version, columns=ExecutionColumns(shard=0, next_deadline=None))

    told = [one.message for one in check.against(live).findings if one.code == "parity.column_differs"]

    assert told == ["next_deadline of the execution is none and should be after all times"]


async def test_columns_that_nobody_tells_are_not_compared() -> None:
    history, rows = ran_late(), Rows()
    await rows.store.write([projected(history)])
    rows.untold = True
    rows.store.executions[EXECUTION] = replace(rows.store.executions[EXECUTION], next_deadline=None, shard=99)

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history)])

    assert verified.verdict.is_proved, verified.verdict.findings


async def test_one_that_never_stands_still_is_neither_proved_nor_accused() -> None:
    history = telling_history(choices(3))
    length = len(history.stored)
    rows = Rows()
    await rows.store.write([projected(history, through=length - 12)])
    rows.written = [(history, at, at + 1) for at in range(length - 12, length)]

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history, length - 12)])

    assert verified.verdict.unsettled
    assert not verified.verdict.is_proved
    assert not verified.verdict.findings


async def test_rows_that_are_behind_or_not_there_are_findings() -> None:
    behind, missing = telling_history(choices(1)), telling_history(choices(2), execution_id=EXECUTION + 1)
    rows = Rows()
    await rows.store.write([projected(behind, through=9)])

    verified = await VerifyExecutions(HistoryLog(behind, missing), rows)([head_of(behind), head_of(missing)])

    assert [[one.code for one in each.verdict.findings] for each in verified] == [
        ["projection.behind"],
        ["projection.missing"],
    ]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("tenant_id", "evil", "tenant_id is 'evil' beside 'default'"),
        ("organization_id", "evil", "organization_id is 'evil' beside 'default'"),
        ("terminal", False, "terminal is False beside True"),
    ],
)
async def test_a_head_that_says_something_else_than_its_events_is_a_finding(field: str, value: Any, told: str) -> None:
    history = ended_history()
    rows = Rows()
    await rows.store.write([projected(history)])
    changed: Any = {field: value}

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([replace(head_of(history), **changed)])

    (finding,) = verified.verdict.findings
    assert finding.code == "stream.differs"
    assert told in finding.message


async def test_one_that_has_ended_since_its_head_was_listed_is_judged_by_where_the_head_stood() -> None:
    history = ended_history()
    rows = Rows()
    await rows.store.write([projected(history)])
    before = head_of(history, len(history.stored) - 1)

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([before])

    assert not before.terminal
    assert verified.verdict.is_proved, verified.verdict.findings
    assert verified.verdict.version == len(history.stored)


@pytest.mark.parametrize("listed_before", [False, True])
async def test_a_head_that_was_put_back_is_not_taken_for_an_execution_that_moved(listed_before: bool) -> None:
    history, rows = ended_history(), Rows()
    log, length = HistoryLog(history), len(history.stored)
    await rows.store.write([projected(history)])
    log.put_back[EXECUTION] = length - 3
    head = head_of(history, length if listed_before else length - 3)

    (verified,) = await VerifyExecutions(log, rows)([head])

    (finding,) = verified.verdict.findings
    assert (finding.code, finding.stream_version) == ("event.beyond_head", length - 2)
    assert f"ends at version {length - 3}, and events up to {length} are here" in finding.message


async def test_a_row_that_is_stored_for_somebody_else_is_told_with_its_key_and_its_owner() -> None:
    (history, *_), rows = running(History()), Rows()
    await rows.store.write([projected(history)])
    (proved,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history)])
    commands = rows.store.rows[Surface.COMMANDS]
    row = json.loads(next(iter(commands.values())))
    forged = {**row, "command_id": "forged", "tenant_id": "evil", "organization_id": "default"}
    commands[EXECUTION, "forged"] = encode(forged)

    (verified,) = await VerifyExecutions(HistoryLog(history), rows)([head_of(history)])

    assert proved.verdict.is_proved, proved.verdict.findings
    shape, parity = verified.verdict.findings
    assert (shape.code, parity.code, parity.surface) == ("row.shape", "parity.differs", "commands")
    told = "the row forged of commands is stored for evil/default, and its execution is not theirs"
    assert shape.message == told


class BrokenAt(HistoryLog):
    """Nobody can read the events of one execution, nor its rows, nor compare its columns."""

    def __init__(self, rows: Rows, broken: int, *histories: History, refused: NoetlError) -> None:
        super().__init__(*histories)
        self._rows = rows
        self._broken = broken
        self._refused = refused
        self.of_events = self.of_rows = self.of_columns = False

    async def read(self, scope: Scope | None, execution_id: int, **place: Any) -> EventPage:
        if self.of_events and execution_id == self._broken:
            raise self._refused
        return await super().read(scope, execution_id, **place)

    async def list_rows(self, scope: Scope | None, wanted: Mapping[int, int], **place: Any) -> RowPage:
        if self.of_rows and self._broken in wanted:
            raise self._refused
        return await self._rows.list_rows(scope, wanted, **place)

    async def check_columns(
        self, scope: Scope | None, execution_ids: Collection[int], *, after: Place | None = None
    ) -> ColumnPage:
        if self.of_columns and self._broken in execution_ids:
            raise self._refused
        return ColumnPage(findings=(), following=None)


@pytest.mark.parametrize(
    ("what", "code"),
    [("of_events", "event.unreadable"), ("of_rows", "row.shape"), ("of_columns", "event.column_differs")],
)
async def test_what_nobody_can_read_of_one_execution_is_told_of_it_and_the_others_are_proved(
    what: str, code: str
) -> None:
    histories = [telling_history(choices(seed), execution_id=EXECUTION + seed) for seed in range(3)]
    rows = Rows()
    await rows.store.write([projected(history) for history in histories])
    broken = BrokenAt(rows, EXECUTION + 1, *histories, refused=NoetlError("internal error"))
    setattr(broken, what, True)

    verified = await VerifyExecutions(broken, broken, columns=broken)([head_of(one) for one in histories])

    first, second, third = (one.verdict for one in verified)
    assert first.is_proved
    assert third.is_proved
    assert (second.findings[0].code, second.findings[0].message) == (code, "it cannot be read: internal error")


@pytest.mark.parametrize("what", ["of_events", "of_rows", "of_columns"])
async def test_what_is_away_is_no_finding(what: str) -> None:
    history, rows = telling_history(choices(1)), Rows()
    await rows.store.write([projected(history)])
    broken = BrokenAt(rows, EXECUTION, history, refused=Unavailable("away"))
    setattr(broken, what, True)

    with pytest.raises(Unavailable):
        await VerifyExecutions(broken, broken, columns=broken)([head_of(history)])


def ended_history() -> History:
    history = next(one for one in (telling_history(choices(seed)) for seed in range(20)) if head_of(one).terminal)
    assert history.stored[-1].envelope().event_type == "playbook.failed"
    return history


def test_batches_are_bounded_by_executions_and_by_events() -> None:
    history = telling_history(choices(1))
    short = [head_of(history, 1)] * (2 * BATCH_EXECUTIONS + 1)
    long = [
        StreamHead(
            execution_id=number,
            tenant_id="default",
            organization_id="default",
            version=BATCH_EVENTS,
            checksum="",
            terminal=False,
            updated_at=NOON,
        )
        for number in range(2)
    ]

    assert [len(batch) for batch in batches([*short, *long])] == [BATCH_EXECUTIONS, BATCH_EXECUTIONS, 1, 1, 1]
