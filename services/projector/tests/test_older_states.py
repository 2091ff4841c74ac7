"""States that are older than what is stored: after an answer that was lost, or while shards change their owner.

Rows of business objects are the only ones that are read back and folded on: an event that is applied twice shows there.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_core.envelope import Draft
from noetl_core.errors import NoetlError, NotAuthenticated, Unavailable
from noetl_core.ports.event_log import EventPage
from noetl_core.ports.projection_store import ProjectedExecution, StoredProjection, Written
from noetl_core.sharding import shard_of
from noetl_core.values import replace
from noetl_projector.application import compare_heads
from noetl_projector.application.advance import Wanted
from noetl_testkit.histories import EXECUTION, NOON, History, choices, initialized, two_steps
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.projecting import Process, rows_of, straight

SHARD = shard_of(EXECUTION, 64)
OTHER, ANOTHER = EXECUTION + 1, EXECUTION + 2
_nothing: Callable[[], None] = lambda: None  # noqa: E731


class Store(InMemoryProjections):
    """Loses answers, and lets something happen while it reads or writes."""

    def __init__(self) -> None:
        super().__init__()
        self.loses_answers = False
        self.away_for: set[int] = set()
        self.while_loading = self.while_writing = _nothing

    async def load(self, execution_ids: Any) -> Any:
        found = await super().load(execution_ids)
        happens, self.while_loading = self.while_loading, _nothing
        happens()
        return found

    async def write(self, executions: Sequence[ProjectedExecution]) -> Written:
        happens, self.while_writing = self.while_writing, _nothing
        happens()
        if self.away_for & {one.state.execution.execution_id for one in executions}:
            raise Unavailable("the database is away")
        written = await super().write(executions)
        if self.loses_answers:
            raise Unavailable("the answer was lost")
        return written


def about_order(number: int, *, attribute: str = "n") -> Draft:
    change = {"type": "order", "id": "7", "patch": {attribute: number}}
    return Draft(event_type="order.told", idempotency_key=f"{attribute}-{number}", meta={"business_object": change})


def orders(count: int, *, execution_id: int = EXECUTION) -> History:
    history = History(execution_id).add(initialized())
    for number in range(count):
        history.add(about_order(number))
    return history


async def test_events_that_were_stored_although_the_answer_was_lost_are_not_applied_to_an_object_again() -> None:
    history, store = orders(5), Store()
    one = Process(HistoryLog(history), store)
    await one.take(*history.stored[:2])
    store.loses_answers = True
    with pytest.raises(Unavailable):
        await one.take(*history.stored[2:4])
    store.loses_answers = False

    await one.take(history.stored[4])  # before the others come again
    await one.take(*history.stored[2:4])
    await one.take(history.stored[5])
    await one.compare()

    assert rows_of(store) == await straight([history])
    assert dict(one.troubles.to_retry()) == {}


async def test_events_in_hand_are_not_applied_to_an_object_again_either() -> None:
    history, store = orders(5), Store()
    one = Process(HistoryLog(history), store)
    await one.take(*history.stored[:2])
    store.loses_answers = True
    with pytest.raises(Unavailable):
        await one.take(*history.stored[2:4])
    store.loses_answers = False

    await one.take(*history.stored[2:6])  # no gap, so nothing is read from the log
    await one.compare()

    assert rows_of(store) == await straight([history])


async def test_what_was_written_alone_before_the_database_went_away_is_known() -> None:
    written, bad, late = orders(5), orders(1, execution_id=OTHER), orders(1, execution_id=ANOTHER)
    store = Store()
    store.unholdable = {OTHER}
    one = Process(HistoryLog(written, bad, late), store)
    await one.take(*written.stored[:2])
    store.away_for = {ANOTHER}
    batch = ((written, written.stored[2:4]), (bad, bad.stored), (late, late.stored))

    def refuse_together() -> None:
        store.away_for = set()
        store.while_writing = lambda: store.away_for.add(ANOTHER)

    store.while_writing = refuse_together  # all of them together are refused for the one that cannot be held
    with pytest.raises(Unavailable):
        await one.project(
            [
                Wanted(execution_id=each.execution_id, shard=shard_of(each.execution_id, 64), events=tuple(events))
                for each, events in batch
            ]
        )

    assert (one.version(), one.known.version(EXECUTION)) == (4, 4)
    store.away_for = set()
    await one.take(*written.stored[4:])
    await one.compare()
    assert one.version() == 6
    store.unholdable = set()
    assert rows_of(store)[0][EXECUTION] == (await straight([written]))[0][EXECUTION]


async def test_a_shard_that_passes_on_during_a_write_and_comes_back_is_begun_with_what_is_stored_then() -> None:
    history, store = orders(8), Store()
    log = HistoryLog(history)
    one, other = Process(log, store, epoch=1), Process(log, store, epoch=2)
    store.while_writing = lambda: one.lose(SHARD)
    await one.take(*history.stored[:3])
    assert one.known.version(EXECUTION) is None
    await other.take(*history.stored[:7])
    other.lose(SHARD)

    one.epochs[SHARD] = 3
    await one.compare()

    assert rows_of(store) == await straight([history])


async def test_a_write_of_a_deposed_owner_between_two_looks_of_the_new_one_is_noticed() -> None:
    history, store = orders(6), Store()
    log = HistoryLog(history)
    old, new = Process(log, store, epoch=1), Process(log, store, epoch=2)
    await old.take(*history.stored[:2])
    found = store.find_objects

    async def find_late(keys: Any) -> Any:
        store.find_objects = found  # type: ignore[method-assign]
        await old.take(*history.stored[2:4])
        return await found(keys)

    store.find_objects = find_late  # type: ignore[method-assign]

    await new.take(*history.stored[2:6])
    await new.compare()

    assert rows_of(store) == await straight([history])


@given(st.integers(0, 2**32))
def test_whoever_writes_and_whatever_answers_are_lost_objects_are_those_of_a_straight_fold(seed: int) -> None:
    """Two owners, each of whom may be the deposed one, at work in turns; shards that go and come back."""
    choose = choices(seed)
    histories = [orders(choose.randint(1, 12), execution_id=EXECUTION + number) for number in range(2)]

    async def scenario() -> None:
        log, store = HistoryLog(*histories), Store()
        epoch = 2
        owners = [Process(log, store, epoch=1), Process(log, store, epoch=2, capacity=choose.choice((1, 100)))]
        for _ in range(choose.randint(1, 25)):
            history, owner = choose.choice(histories), choose.choice(owners)
            shard = shard_of(history.execution_id, 64)
            first = choose.randrange(len(history.stored))
            events = history.stored[first : first + choose.randint(1, 5)]
            store.loses_answers = choose.random() < 0.2
            if choose.random() < 0.15:
                store.while_writing = lambda owner=owner, shard=shard: owner.lose(shard)  # type: ignore[misc]
            if shard not in owner.epochs and choose.random() < 0.5:
                epoch += 1
                owner.epochs[shard] = epoch
            with suppress(Unavailable):
                await owner.take(*events, execution_id=history.execution_id)
            store.loses_answers, store.while_writing = False, _nothing
            if choose.random() < 0.1:
                await owner.compare()
        await Process(log, store, epoch=99).compare()

        assert rows_of(store) == await straight(histories)

    asyncio.run(scenario())


async def test_a_shard_that_is_lost_and_comes_back_while_heads_are_compared_is_taken_over_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compare_heads, "EXECUTIONS_A_BATCH", 1)
    ids = [one for one in range(EXECUTION, EXECUTION + 2_000) if shard_of(one, 64) == SHARD][:4]
    histories = [two_steps(History(one, started_at=NOON + timedelta(seconds=number))) for number, one in enumerate(ids)]
    one = Process(HistoryLog(*histories), Store())
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 2:
            one.lose(SHARD)  # to a replica that goes away again
        if beats == 4:
            one.epochs[SHARD] = 3

    await one.compare(beat=beat)
    assert one.compare.has_gained
    assert SHARD not in await one.checkpoints.marks({SHARD}), "nobody is told that it was compared"
    await one.compare()

    assert rows_of(one.store) == await straight(histories)


async def test_what_moves_all_the_time_is_not_left_to_a_bus_that_answers_and_brings_nothing() -> None:
    history = History().add(initialized())
    one = Process(log := HistoryLog(history), Store())
    log.now = history.now + timedelta(minutes=1)
    await one.compare()
    heads = []
    for number in range(4):
        history.add(about_order(number))
        log.now = history.now + timedelta(milliseconds=500)
        heads.append(len(history.stored))
        await one.compare()

    assert one.version() >= heads[-2], "what was on its way a comparison ago is there"


async def test_what_moves_all_the_time_is_left_to_the_bus_as_long_as_it_brings_it() -> None:
    history = History().add(initialized())
    one = Process(log := HistoryLog(history), Store())
    log.now = history.now + timedelta(minutes=1)
    await one.compare()
    reads = len(log.reads)
    for number in range(4):
        before = len(history.stored)
        history.add(about_order(number))
        log.now = history.now + timedelta(milliseconds=500)
        await one.compare()
        await one.take(*history.stored[before:])

    assert len(log.reads) == reads


async def test_what_would_be_made_again_is_left_to_the_next_owner_if_its_shard_is_lost_before_that_is_known() -> None:
    history, store = two_steps(History()), Store()
    log = HistoryLog(history)
    await Process(log, store).take(*history.stored[:5])
    one = Process(log, store, epoch=2)
    load = store.load

    async def load_of_other_rules(execution_ids: Any) -> dict[int, StoredProjection]:
        return {key: replace(row, upcasters="other") for key, row in (await load(execution_ids)).items()}

    store.load = load_of_other_rules  # type: ignore[method-assign]
    store.while_loading = lambda: one.lose(SHARD)
    await one.take(*history.stored[5:9])
    assert EXECUTION not in one.remakes
    assert dict(one.troubles.to_retry()) == {}
    store.load = load  # type: ignore[method-assign]  # another owner has made it again

    one.epochs[SHARD] = 3
    await one.compare()

    assert rows_of(store) == await straight([history])


async def test_a_failure_at_an_earlier_event_does_not_make_a_later_one_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history, store = two_steps(History()), Store()
    log = HistoryLog(history)
    one = Process(log, store)
    await one.take(*history.stored[:5])

    async def refuse(*_: Any, **__: Any) -> EventPage:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(log, "read", refuse)
        failure: NoetlError = Unavailable("api is away")
        await one.compare()
        failure = NotAuthenticated("the token is not known yet")
        await one.take(history.stored[8])  # an earlier one comes again, and there is a gap before it

    await one.compare()

    assert one.version() == 18


async def test_what_cannot_be_folded_in_a_shard_that_was_lost_meanwhile_is_nobody_s_trouble_here() -> None:
    history, store = orders(3), Store()
    one = Process(HistoryLog(history), store)
    store.unholdable = {EXECUTION}
    store.while_writing = lambda: one.lose(SHARD)

    await one.take(*history.stored)

    assert dict(one.troubles.to_retry()) == {}
    assert one.troubles.quarantined() == {}
    store.unholdable = set()
    one.epochs[SHARD] = 2
    await one.compare()
    assert rows_of(store) == await straight([history])


async def test_a_shard_that_is_lost_and_comes_back_during_a_batch_is_not_stored_by_it() -> None:
    lost, kept = orders(4), orders(2)
    for number in range(2, 6):
        kept.add(about_order(number, attribute="kept"))
    store = Store()
    one = Process(HistoryLog(kept), store)
    await one.take(*kept.stored[:3])
    one.lose(SHARD)
    one.epochs[SHARD] = 1

    def change_the_log() -> None:
        """A heartbeat tells of another branch: everything is given up, and had again under the same epoch."""
        one.lose(SHARD)
        one.epochs[SHARD] = 1

    store.while_loading = change_the_log
    await one.take(*lost.stored[3:])
    assert one.version() == 3
    await one.compare()

    assert rows_of(store) == await straight([kept])


async def test_events_that_waited_for_their_turn_while_the_log_went_on_otherwise_are_not_projected() -> None:
    history, store = orders(4), Store()
    one = Process(HistoryLog(history), store)
    one.log_branch = "log.2"
    shard = shard_of(EXECUTION, 64)

    await one.project([Wanted(execution_id=EXECUTION, shard=shard, events=tuple(history.stored), log_branch="log.1")])
    assert one.version() == 0
    assert one.count("foreign_messages") == len(history.stored)

    await one.project([Wanted(execution_id=EXECUTION, shard=shard, events=tuple(history.stored), log_branch="log.2")])
    assert rows_of(store) == await straight([history])
