"""The projector's application over in-memory twins: what reaches the rows, whatever the bus does."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_contracts.messages import event_headers, pack_events
from noetl_contracts.subjects import LOG_BRANCH, event_subject
from noetl_core.business_objects.events import AGGREGATE, META_KEY
from noetl_core.canonical import decode, encode
from noetl_core.envelope import Draft, StoredEvent
from noetl_core.errors import Unavailable
from noetl_core.ports.bus import Delivery, Message
from noetl_core.ports.projection_store import ProjectedExecution, ShardCheckpoint, Written
from noetl_core.sharding import shard_of
from noetl_projector.application import read_missing
from noetl_projector.application.advance import Wanted
from noetl_projector.application.compare_heads import GRACE, OVERLAP
from noetl_projector.application.fold_events import mentioned_objects
from noetl_projector.entrypoints.shard_consumer import ShardConsumer, batches
from noetl_projector.telemetry import ProjectorMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.histories import (
    EXECUTION,
    NOON,
    TRACE,
    History,
    choices,
    drawn_history,
    initialized,
    shuffled_delivery,
    two_steps,
)
from noetl_testkit.memory.history_log import HistoryLog
from noetl_testkit.memory.projections import InMemoryProjections
from noetl_testkit.projecting import AFTERWARDS, BEFORE, Process, rows_of, straight
from noetl_testkit.until import until

SHARD = shard_of(EXECUTION, 64)
BEGINNINGS = (BEFORE, AFTERWARDS)


def process(*histories: History, capacity: int = 100) -> Process:
    return Process(HistoryLog(*histories), InMemoryProjections(), capacity=capacity)


def delivery(event: StoredEvent, *, shard: int = SHARD, execution_id: int = EXECUTION, place: int = 0) -> Delivery:
    subject = event_subject(tenant_id="default", organization_id="default", execution_id=execution_id, shard=shard)
    return Delivery(subject=subject, body=event.body, headers=event_headers(event, TRACE), receipt=str(place))


@given(st.integers(0, 2**32))
def test_whatever_the_bus_does_the_rows_are_those_of_a_straight_fold(seed: int) -> None:
    """Lost, doubled and reordered messages, batches of any size, crashes between any two of them, changing owners."""
    choose = choices(seed)
    histories = [
        drawn_history(choose, execution_id=EXECUTION + number, moves=choose.randint(0, 14)) for number in range(4)
    ]

    async def scenario() -> None:
        log, store = HistoryLog(*histories), InMemoryProjections()
        events = [(history.execution_id, event) for history in histories for event in history.stored]
        await _deliver_badly(choose, events, log, store)
        last = Process(log, store, epoch=99)
        await last.compare()

        assert rows_of(store) == await straight(histories)

    asyncio.run(scenario())


async def _deliver_badly(
    choose: random.Random, events: Sequence[tuple[int, StoredEvent]], log: HistoryLog, store: InMemoryProjections
) -> None:
    owners = {event: execution_id for execution_id, event in events}
    delivered = shuffled_delivery(choose, list(owners))
    if choose.random() < 0.3:  # in order, but with losses
        delivered.sort(key=lambda event: event.stream_version)
    epoch = 1
    current = Process(log, store, epoch=epoch, capacity=choose.choice((1, 100)), began_at=choose.choice(BEGINNINGS))
    while delivered:
        size = choose.randint(1, 8)
        batch, delivered = delivered[:size], delivered[size:]
        grouped: dict[int, list[StoredEvent]] = {}
        for event in batch:
            grouped.setdefault(owners[event], []).append(event)
        log.failure = Unavailable("api is away") if choose.random() < 0.1 else None
        await current.project(
            [Wanted(execution_id=key, shard=shard_of(key, 64), events=tuple(group)) for key, group in grouped.items()]
        )
        log.failure = None
        if choose.random() < 0.15:  # a crash, or another owner while the old one still believes in itself
            epoch += choose.choice((0, 1))
            current = Process(
                log, store, epoch=epoch, capacity=choose.choice((1, 100)), began_at=choose.choice(BEGINNINGS)
            )
        if choose.random() < 0.1:
            await current.compare()


async def test_a_message_on_its_own_is_not_the_state() -> None:
    """The first known way to get this wrong: a row that is its last event."""
    history = two_steps(History())
    one = process(history)

    await one.take(history.stored[-1])

    assert rows_of(one.store) == await straight([history])
    assert one.log.reads == [(EXECUTION, 1, 18)]
    assert one.count("events_recovered") == 18


async def test_contiguous_events_are_folded_without_asking_the_log() -> None:
    history = two_steps(History())
    one = process(history)

    await one.take(*history.stored[:9])
    await one.take(*history.stored[9:])

    assert one.version() == 18
    assert one.log.reads == []
    assert one.store.writes == 2
    assert one.count("events_projected") == 18


async def test_events_of_many_executions_are_one_write() -> None:
    histories = [two_steps(History(EXECUTION + number)) for number in range(5)]
    one = process(*histories)

    await one.project(
        [
            Wanted(
                execution_id=history.execution_id,
                shard=shard_of(history.execution_id, 64),
                events=tuple(history.stored),
            )
            for history in histories
        ]
    )

    assert one.store.writes == 1
    assert one.count("rows_written") == 5


async def test_what_came_before_is_dropped_and_counted() -> None:
    history = two_steps(History())
    one = process(history)
    await one.take(*history.stored)

    await one.take(*history.stored[:5], history.stored[4])

    assert one.store.writes == 1
    assert one.count("events_stale") == 6


async def test_a_batch_in_any_order_with_doubles_is_put_in_order() -> None:
    history = two_steps(History())
    one = process(history)

    await one.take(*reversed(history.stored), *history.stored[3:7])

    assert rows_of(one.store) == await straight([history])
    assert one.log.reads == []


async def test_a_state_that_is_not_in_memory_is_loaded() -> None:
    history, other = two_steps(History()), two_steps(History(EXECUTION + 1))
    one = process(history, other, capacity=1)
    await one.take(*history.stored[:9])
    await one.take(*other.stored, execution_id=EXECUTION + 1)

    await one.take(*history.stored[9:])

    assert rows_of(one.store) == await straight([history, other])
    assert one.log.reads == []


async def test_a_long_history_is_read_in_pages_and_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_missing, "READ_PAGE", 3)
    monkeypatch.setattr(read_missing, "MAX_READ_EVENTS", 6)
    history = two_steps(History())
    one = process(history)

    await one.compare()

    assert [last for _, _, last in one.log.reads] == [3, 6, 9, 12, 15, 18]
    assert one.store.writes == 3
    assert rows_of(one.store) == await straight([history])


async def test_the_last_event_of_an_execution_leaves_no_gap_and_is_found_all_the_same() -> None:
    history = two_steps(History())
    one = process(history)
    await one.take(*history.stored[:-1])
    assert one.store.executions[EXECUTION].view.status == "RUNNING"

    await one.compare()

    assert one.store.executions[EXECUTION].view.status == "COMPLETED"


async def test_comparing_what_has_arrived_reads_nothing() -> None:
    history = two_steps(History())
    one = process(history)
    await one.take(*history.stored)

    await one.compare()
    await one.compare()

    assert one.log.reads == []


async def test_what_moved_just_now_is_left_to_the_bus_while_it_answers() -> None:
    history = two_steps(History())
    one = process(history)
    one.log.now = history.now
    await one.compare()  # a shard that was gained is compared without grace
    assert one.version() == 18
    late = one.log.add(two_steps(History(EXECUTION + 1)))

    await one.compare()
    assert one.version(EXECUTION + 1) == 0
    one.log.now = late.now + GRACE
    await one.compare()
    assert one.version(EXECUTION + 1) == 18


async def test_while_the_bus_is_away_a_glance_is_enough() -> None:
    one = process()
    await one.compare()
    started_at = one.log.now - timedelta(seconds=4)
    history = one.log.add(two_steps(History(started_at=started_at)))

    await one.compare.glance()

    assert one.version() == 18
    assert history.stored[-1].ingest_time >= one.log.now - timedelta(seconds=1)


async def test_a_new_owner_begins_where_the_last_one_left_off() -> None:
    history = two_steps(History())
    first = process(history)
    await first.compare()
    await first.checkpoints.flush()
    assert first.log.listings == [None]

    second = Process(first.log, first.store, epoch=2)
    await second.compare()

    assert first.store.shards[SHARD].caught_up_to == first.log.now
    assert second.log.listings == [None, first.log.now - OVERLAP]


async def test_a_comparison_that_could_not_be_finished_is_made_again() -> None:
    history = two_steps(History())
    one = process(history)
    one.log.failure = Unavailable("api is away")

    with pytest.raises(Unavailable):
        await one.compare()
    one.log.failure = None
    await one.compare()

    assert one.version() == 18
    assert one.log.listings == [None]


async def test_a_gap_that_cannot_be_read_now_is_filled_later_and_harms_nobody() -> None:
    history, other = two_steps(History()), two_steps(History(EXECUTION + 1))
    one = process(history, other)
    one.log.failure = Unavailable("api is away")

    await one.project(
        [
            Wanted(execution_id=EXECUTION, shard=SHARD, events=(history.stored[9],)),
            Wanted(execution_id=EXECUTION + 1, shard=shard_of(EXECUTION + 1, 64), events=tuple(other.stored)),
        ]
    )
    assert (one.version(), one.version(EXECUTION + 1)) == (0, 18)
    assert list(one.troubles.to_retry()) == [EXECUTION]

    one.log.failure = None
    await one.compare()
    assert one.version() == 18
    assert one.troubles.to_retry() == {}


async def test_while_the_log_is_away_one_attempt_is_enough_for_a_whole_batch() -> None:
    histories = [two_steps(History(EXECUTION + number)) for number in range(30)]
    one = process(*histories)
    one.log.failure = Unavailable("api is away")

    await one.project(
        [
            Wanted(execution_id=history.execution_id, shard=shard_of(history.execution_id, 64), target=18)
            for history in histories
        ]
    )

    assert one.log.attempts <= read_missing.CONCURRENT_READS
    assert len(one.troubles.to_retry()) == 30


async def test_rows_that_could_not_be_written_together_are_written_a_few_at_a_time() -> None:
    """A database that needs too long for them is not away, but says the same."""
    histories = [two_steps(History(EXECUTION + number)) for number in range(20)]
    one = process(*histories)
    one.store.most_rows = 4

    for _ in range(9):
        with suppress(Unavailable):
            await one.compare()

    assert rows_of(one.store) == await straight(histories)


def broken(execution_id: int = EXECUTION) -> History:
    """A history whose third event has a type that is known and a content that is not."""
    history = History(execution_id).add(initialized())
    history.add(Draft(event_type="user.note", idempotency_key="fine"))
    return history.add(Draft(event_type="step.enter", idempotency_key="broken"))


async def test_an_execution_that_cannot_be_folded_is_set_aside_and_its_shard_goes_on() -> None:
    bad, good = broken(), two_steps(History(EXECUTION + 64))
    one = process(bad, good)

    for _ in range(4):
        await one.take(*bad.stored)
    await one.take(*good.stored, execution_id=good.execution_id)

    assert one.version() == 2, "as far as it can be folded, it is"
    assert one.version(good.execution_id) == 18
    assert list(one.troubles.quarantined()) == [EXECUTION]
    assert "lacks 'activation'" in one.troubles.quarantined()[EXECUTION].reason
    assert one.count("projection_errors") == 3
    assert one.metrics.value("noetl_projector_quarantined_executions") == 1


async def test_a_quarantined_execution_does_not_stop_the_comparison_but_its_checkpoint() -> None:
    bad, good = broken(), two_steps(History(EXECUTION + 64))
    one = process(bad, good)
    for _ in range(4):
        await one.compare()
    await one.checkpoints.flush()

    assert one.version(good.execution_id) == 18
    assert list(one.troubles.quarantined()) == [EXECUTION]
    assert one.store.shards[SHARD].caught_up_to == bad.stored[-1].ingest_time
    assert one.store.shards[(SHARD + 1) % 64].caught_up_to == one.log.now
    reads = len(one.log.reads)
    await one.compare()
    assert len(one.log.reads) == reads, "it is not tried for ever"


async def test_whoever_comes_next_tries_a_quarantined_execution_again() -> None:
    bad = broken()
    one = process(bad)
    for _ in range(3):
        await one.compare()
    assert one.troubles.is_quarantined(EXECUTION)

    one.lose(SHARD)
    assert not one.troubles.is_quarantined(EXECUTION)


def test_an_event_that_cannot_be_read_mentions_no_object_and_harms_none() -> None:
    history = History().add(initialized())
    history.add(Draft(event_type="order.told", idempotency_key="one", meta={META_KEY: {"type": "order", "id": "7"}}))
    told = history.stored[-1]
    envelope: Any = decode(told.body)
    unreadable = told._replace(body=encode({**envelope, "aggregate_type": AGGREGATE, "meta": True}))

    assert mentioned_objects([unreadable, told]) == {"order/7"}


async def test_an_event_of_another_execution_under_this_one_s_subject_is_not_folded() -> None:
    mine, foreign = two_steps(History()), two_steps(History(EXECUTION + 1))
    one = process(mine, foreign)

    await one.take(foreign.stored[0])

    assert one.version() == 0
    assert "an event of execution" in one.troubles.to_retry()[EXECUTION].reason


async def test_a_row_that_cannot_be_stored_stays_behind_alone() -> None:
    histories = [two_steps(History(EXECUTION + number)) for number in range(3)]
    one = process(*histories)
    one.store.unholdable = {EXECUTION + 1}

    for _ in range(3):
        await one.compare()

    assert [one.version(EXECUTION + number) for number in range(3)] == [18, 0, 18]
    assert list(one.troubles.quarantined()) == [EXECUTION + 1]


async def test_events_of_shards_that_others_own_are_counted_and_left_to_them() -> None:
    history = two_steps(History())
    one = process(history)
    del one.epochs[SHARD]

    await one.take(*history.stored)

    assert one.version() == 0
    assert one.count("events_unowned") == 18


async def test_a_deposed_projector_learns_it_from_the_row_and_gives_the_shard_up() -> None:
    history = two_steps(History())
    old = process(history)
    new = Process(old.log, old.store, epoch=2)
    await old.take(*history.stored[:5])
    await new.take(*history.stored[:9])

    await old.take(*history.stored[5:12])

    assert old.version() == 9
    assert SHARD not in old.epochs
    assert old.count("fenced") == 1
    assert old.troubles.to_retry() == {}


async def test_a_row_that_another_replica_has_written_is_not_written_over() -> None:
    history = two_steps(History())
    one = process(history)
    other = Process(one.log, one.store)
    await one.take(*history.stored[:5])
    await other.take(*history.stored)

    await one.take(*history.stored[5:9])

    assert one.version() == 18
    assert (
        one.metrics.value("noetl_projector_projection_stale_records_total", group="execution", shard_id=str(SHARD)) == 1
    )
    await one.take(history.stored[-1])
    assert one.store.writes == 3, "having looked, it knows"


async def test_a_row_that_was_removed_is_made_again_whole() -> None:
    history = two_steps(History())
    one = process(history)
    await one.take(*history.stored[:9])
    one.store.executions.clear()
    for rows in one.store.rows.values():
        rows.clear()

    await one.take(*history.stored[9:])
    await one.compare()

    assert rows_of(one.store) == await straight([history])


async def test_while_the_database_is_away_nothing_changes_and_messages_come_again() -> None:
    history = two_steps(History())
    one = process(history)
    await one.bus.publish_batch(
        [
            Message(
                subject=event_subject(
                    tenant_id="default", organization_id="default", execution_id=EXECUTION, shard=SHARD
                ),
                message_id=str(event.stream_version),
                body=event.body,
                headers=event_headers(event, TRACE),
            )
            for event in history.stored
        ]
    )
    one.store.failure = Unavailable("the database is away")
    first = await one.pull.fetch(batch=500, wait_seconds=1)
    with pytest.raises(Unavailable):
        await one.consumer.take(first)

    one.store.failure = None
    again = await one.pull.fetch(batch=500, wait_seconds=5)
    await one.consumer.take(again)

    assert {one_of.attempt for one_of in again} == {2}
    assert rows_of(one.store) == await straight([history])
    assert one.count("delayed_redelivery_requests") == one.count("redelivery_requests") == 18
    assert one.count("acknowledged_notifications") == 18
    assert await one.pull.fetch(batch=500, wait_seconds=0) == ()


async def test_a_crash_between_the_write_and_the_acknowledgement_does_nothing_twice() -> None:
    history = two_steps(History())
    one = process(history)
    deliveries = [delivery(event, place=place) for place, event in enumerate(history.stored)]
    await one.take(*history.stored)  # written, and then the process was gone

    after = Process(one.log, one.store)
    await after.bus.publish_batch(
        [Message(subject=d.subject, message_id=d.receipt, body=d.body, headers=d.headers) for d in deliveries]
    )
    await after.consumer.take(await after.pull.fetch(batch=500, wait_seconds=1))

    assert one.store.writes == 1
    assert after.count("events_stale") == 18
    assert rows_of(one.store) == await straight([history])


async def test_what_began_in_the_time_of_a_process_is_written_without_a_look() -> None:
    history = two_steps(History())
    one = Process(HistoryLog(history), InMemoryProjections(), began_at=BEFORE)

    await one.take(*history.stored[:6])
    await one.take(*history.stored[6:])

    assert one.store.loads == 0
    assert rows_of(one.store) == await straight([history])


@pytest.mark.parametrize("stored", [1, 3, 6, 18])
@pytest.mark.parametrize("told", [1, 6, 18])
async def test_a_row_that_is_there_after_all_never_goes_back(stored: int, told: int) -> None:
    """An owner before us wrote it, and the bus tells us of its beginning again."""
    history = two_steps(History())
    one = process(history)
    await one.take(*history.stored[:stored])
    after = Process(one.log, one.store, epoch=2, began_at=BEFORE)

    await after.take(*history.stored[:told])

    assert after.version() == max(stored, told)
    assert not after.troubles.quarantined()
    await after.take(*history.stored[told:])
    assert rows_of(one.store) == await straight([history])


async def test_who_was_deposed_does_not_write_what_it_did_not_look_for() -> None:
    history = two_steps(History())
    one = process(history)
    late = Process(one.log, one.store, epoch=1, began_at=BEFORE)
    new = Process(one.log, one.store, epoch=2)
    await new.take(*history.stored[:1])

    await late.take(*history.stored)

    assert late.version() == 1
    assert SHARD not in late.epochs


class Receiver:
    """A consumer that only remembers how deliveries were settled."""

    def __init__(self) -> None:
        self.acknowledged: list[Delivery] = []
        self.terminated: list[Delivery] = []

    async def fetch(self, *, batch: int, wait_seconds: float) -> tuple[Delivery, ...]:
        raise AssertionError("nobody fetches here")

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        self.acknowledged += deliveries

    async def nak(self, deliveries: Iterable[Delivery], *, delay_seconds: float = 0.0) -> None:
        raise AssertionError("nothing is to come again")

    async def keep(self, deliveries: Iterable[Delivery]) -> None:
        raise AssertionError("nothing waits for long")

    async def term(self, deliveries: Iterable[Delivery]) -> None:
        self.terminated += deliveries

    async def set_subjects(self, subjects: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


async def test_messages_that_nobody_can_read_are_terminated_and_their_neighbours_are_not_harmed() -> None:
    history = two_steps(History())
    one = process(history)
    receiver = Receiver()
    counts = ProjectorMetrics(metrics := MetricSet())
    consumer = ShardConsumer(receiver, one.project, batch_size=500, shard_count=64, metrics=counts)
    good = delivery(history.stored[0])
    unreadable = [
        Delivery(subject=good.subject, body=b"{}", headers=good.headers, receipt="changed bytes"),
        Delivery(subject=good.subject, body=good.body, headers={}, receipt="no headers"),
        Delivery(subject="noetl.events.x", body=good.body, headers=good.headers, receipt="no place"),
        delivery(history.stored[0], shard=(SHARD + 1) % 64),
    ]

    await consumer.take([*unreadable, good])

    assert receiver.terminated == unreadable
    assert receiver.acknowledged == [good]
    assert one.version() == 1
    assert metrics.value("noetl_projector_decode_errors_total", shard_id=str(SHARD)) == 2
    assert metrics.value("noetl_projector_events_unshardable_total") == 2
    assert metrics.value("noetl_projector_terminated_notifications_total", shard_id=str(SHARD)) == 2
    assert metrics.value("noetl_projector_terminated_notifications_total", shard_id="") == 2


def shared(*events: StoredEvent, place: int = 0) -> Delivery:
    body, headers = pack_events(events, TRACE)
    subject = event_subject(tenant_id="default", organization_id="default", execution_id=EXECUTION, shard=SHARD)
    return Delivery(subject=subject, body=body, headers=headers, receipt=str(place))


async def test_events_that_share_messages_are_folded_and_acknowledged_like_others() -> None:
    history = two_steps(History())
    one, receiver, counts = process(history), Receiver(), MetricSet()
    consumer = ShardConsumer(receiver, one.project, batch_size=500, shard_count=64, metrics=ProjectorMetrics(counts))

    # One comes alone after it has come with its neighbours, and a message comes with what is known in part.
    await consumer.take([shared(*history.stored[:7]), delivery(history.stored[6], place=1)])
    await consumer.take([shared(*history.stored[4:], place=2)])

    assert rows_of(one.store) == await straight([history])
    assert [settled.receipt for settled in receiver.acknowledged] == ["0", "1", "2"]
    assert counts.value("noetl_projector_events_received_total") == 7 + 1 + 14
    assert counts.total("noetl_projector_acknowledged_notifications_total") == 3
    assert one.count("events_projected") == 18


async def test_a_shared_message_with_a_forged_event_is_dropped_whole_and_found_in_the_log() -> None:
    history = two_steps(History())
    one, receiver, counts = process(history), Receiver(), MetricSet()
    consumer = ShardConsumer(receiver, one.project, batch_size=500, shard_count=64, metrics=ProjectorMetrics(counts))
    forged = history.stored[3]._replace(body=history.stored[3].body.replace(b"{", b"{ ", 1))

    await consumer.take([shared(*history.stored[:3], forged), shared(*history.stored[4:], place=1)])

    assert [settled.receipt for settled in receiver.terminated] == ["0"]
    assert counts.total("noetl_projector_decode_errors_total") == 1
    assert rows_of(one.store) == await straight([history])


def test_a_batch_has_so_many_events_however_many_share_a_message() -> None:
    history = two_steps(History())
    deliveries = [shared(*history.stored[:6]), shared(*history.stored[6:8]), *map(delivery, history.stored[8:12])]

    divided = [(len(part), events) for part, events in batches(deliveries, 5)]

    assert divided == [(1, 6), (4, 5), (1, 1)]


class Courier(Receiver):
    """Brings everything at once, and then nothing any more; notes what is kept and what is to come again."""

    def __init__(self, *deliveries: Delivery) -> None:
        super().__init__()
        self.brought = asyncio.Event()
        self.kept: list[list[str]] = []
        self.again: list[str] = []
        self._deliveries = deliveries

    async def fetch(self, *, batch: int, wait_seconds: float) -> tuple[Delivery, ...]:
        if self.brought.is_set():
            await asyncio.Event().wait()
        self.brought.set()
        return self._deliveries

    async def nak(self, deliveries: Iterable[Delivery], *, delay_seconds: float = 0.0) -> None:
        assert delay_seconds > 0
        self.again += [one.receipt for one in deliveries]

    async def keep(self, deliveries: Iterable[Delivery]) -> None:
        self.kept.append([one.receipt for one in deliveries])


async def test_what_waits_while_others_are_written_is_kept_from_coming_again() -> None:
    history = two_steps(History())
    one, counts = process(history), ProjectorMetrics(MetricSet())
    courier = Courier(*(shared(*history.stored[at : at + 4], place=at // 4) for at in range(0, 16, 4)))
    now = iter(range(0, 1_000, 5))
    consumer = ShardConsumer(
        courier, one.project, batch_size=4, shard_count=64, metrics=counts, clock=lambda: float(next(now))
    )
    running = asyncio.create_task(consumer.run(lambda: None))

    await until(lambda: len(courier.acknowledged) == 4)
    running.cancel()

    assert courier.kept == [["2", "3"]], "after 10 s; the next time nothing would wait any more"
    assert courier.again == []
    assert one.version() == 16


async def test_if_a_part_fails_everything_that_was_fetched_with_it_comes_again_soon() -> None:
    history = two_steps(History())
    one, counts = process(history), MetricSet()
    courier = Courier(*(shared(*history.stored[at : at + 4], place=at // 4) for at in range(0, 16, 4)))
    consumer = ShardConsumer(courier, one.project, batch_size=4, shard_count=64, metrics=ProjectorMetrics(counts))

    def fail_from_now_on() -> None:
        if courier.acknowledged:
            one.store.failure = Unavailable("the database is away")

    with pytest.raises(Unavailable):
        await consumer.run(fail_from_now_on)

    assert [settled.receipt for settled in courier.acknowledged] == ["0"]
    assert courier.again == ["1", "2", "3"]
    assert counts.value("noetl_projector_redelivery_requests_total", shard_id=str(SHARD)) == 3


async def test_messages_of_a_log_that_a_restored_database_lost_change_nothing() -> None:
    history = two_steps(History())
    one = process(history)
    receiver = Receiver()
    counts = ProjectorMetrics(metrics := MetricSet())
    consumer = ShardConsumer(
        receiver, one.project, batch_size=500, shard_count=64, metrics=counts, log_branch=lambda: "log.2"
    )
    unmarked, own, lost = (delivery(event) for event in history.stored[:3])
    own = replace(own, headers={**own.headers, LOG_BRANCH: "log.2"})
    lost = replace(lost, headers={**lost.headers, LOG_BRANCH: "log.1"})

    await consumer.take([unmarked, own, lost])

    assert one.version() == 2
    assert (receiver.terminated, receiver.acknowledged) == ([lost], [unmarked, own])
    assert metrics.value("noetl_projector_foreign_messages_total") == 1


async def test_checkpoints_are_written_once_for_many_batches() -> None:
    history = two_steps(History())
    one = process(history)
    for event in history.stored:
        await one.take(event)
    assert one.store.shards == {}

    await one.checkpoints.flush()

    (checkpoint,) = one.store.shards.values()
    assert (checkpoint.shard, checkpoint.last_event_id) == (SHARD, history.recorded[-1].envelope.event_id)
    assert checkpoint.lag_seconds is not None
    one.store.shards[SHARD] = ShardCheckpoint(shard=SHARD)
    await one.checkpoints.flush()
    assert one.store.shards[SHARD] == ShardCheckpoint(shard=SHARD), "nothing new, nothing written"


async def test_lag_is_counted_from_the_append_of_the_oldest_event_of_an_update() -> None:
    history = two_steps(History())
    store = InMemoryProjections(now=lambda: NOON + timedelta(seconds=61))
    one = Process(HistoryLog(history), store)

    await one.take(*history.stored)

    assert one.metrics.value("noetl_projection_shard_lag_seconds", shard_id=str(SHARD)) == 60.0
    assert one.metrics.value("noetl_projection_lag_seconds_count") == 1


class DelayedProjections(InMemoryProjections):
    """Something happens while it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    async def write(self, rows: Sequence[ProjectedExecution]) -> Written:
        self.meanwhile()
        return await super().write(rows)


async def test_how_far_a_shard_is_is_not_shown_by_who_has_lost_it() -> None:
    history = two_steps(History())
    store = DelayedProjections()
    one = Process(HistoryLog(history), store)
    await one.take(*history.stored[:2])
    one.checkpoints.caught_up({SHARD: NOON})
    await one.checkpoints.flush()
    await one.barriers.close()
    gauges = (
        "noetl_projection_shard_lag_seconds",
        "noetl_checkpoint_shard_age_seconds",
        "noetl_projector_checkpoint_timestamp_seconds",
    )
    shard = {"shard_id": str(SHARD)}
    assert all(one.metrics.registry.get_sample_value(gauge, shard) is not None for gauge in gauges)

    def lose_the_shard() -> None:
        one.epochs.clear()
        one.counts.forget_shards({SHARD})

    store.meanwhile = lose_the_shard
    await one.take(*history.stored[2:])

    assert one.metrics.value("noetl_projection_lag_seconds_count") == 2
    assert [gauge for gauge in gauges if one.metrics.registry.get_sample_value(gauge, shard) is not None] == []
