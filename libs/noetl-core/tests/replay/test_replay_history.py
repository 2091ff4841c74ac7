"""Replay gives the same checksums however the events of a history are delivered, and from wherever it begins."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.canonical import JsonObject, encode
from noetl_core.envelope import Draft, StoredEvent, chain_checksum
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.evidence.verdict import HistoryCheck
from noetl_core.payloads import refer_to
from noetl_core.replay.differences import ABSENT, differences
from noetl_core.replay.event_lines import event_line, read_event_line
from noetl_core.replay.history import Replay, Replayed, Seed
from noetl_core.replay.payload_uses import PayloadUses
from noetl_core.replay.points import Point
from noetl_core.replay.sizes import Size
from noetl_core.surfaces.shapes import Surface
from noetl_core.surfaces.surface_fold import Rows
from noetl_core.values import replace
from noetl_testkit.frame_histories import drawn_frame_history
from noetl_testkit.histories import (
    EXECUTION,
    WORKLOAD,
    History,
    choices,
    drawn_history,
    initialized,
    issued,
    shuffled_delivery,
    two_steps,
)
from noetl_testkit.telling_histories import telling_history


def replayed(events: list[StoredEvent], execution_id: int = EXECUTION) -> Replayed:
    replay = Replay(execution_id)
    replay.take(events)
    return replay.result()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_delivery_that_doubles_reorders_and_loses_across_executions_changes_no_checksum(seed: int) -> None:
    choose = choices(seed)
    logs = {
        EXECUTION + number: drawn_history(choose, execution_id=EXECUTION + number, moves=choose.randint(0, 20)).stored
        for number in range(3)
    }
    replays = {execution_id: Replay(execution_id) for execution_id in logs}

    everything = [(execution_id, event) for execution_id, events in logs.items() for event in events]
    for execution_id, event in _on_a_bad_day(choose, everything):
        replays[execution_id].take([event])
    for execution_id, replay in replays.items():  # what never came is read from the log
        replay.take(logs[execution_id][replay.version :])

    for execution_id, events in logs.items():
        assert replays[execution_id].result().checksums() == replayed(events, execution_id).checksums()


def _on_a_bad_day(choose: random.Random, events: list[tuple[int, StoredEvent]]) -> list[tuple[int, StoredEvent]]:
    delivered = [one for one in events if choose.random() > 0.2] + [one for one in events if choose.random() < 0.2]
    choose.shuffle(delivered)
    return delivered


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1))
def test_a_replay_may_begin_where_another_has_stopped(seed: int, share: float) -> None:
    choose = choices(seed)
    draw = (drawn_frame_history, drawn_history, telling_history)[seed % 3]
    events = draw(choose).stored
    cut = max(int(len(events) * share), 1)
    first = replayed(events[:cut])
    assert first.reached_at is not None
    seeded = Replay(
        EXECUTION,
        seed=Seed(
            state=first.state,
            rows=first.rows,
            payloads=PayloadUses.from_json(first.payloads.to_json()),
            checksum=first.checksum,
            reached_at=first.reached_at,
            attribute_bytes=first.size.attribute_bytes,
            snapshot_checksum="",
        ),
    )
    seeded.take(events[cut:])

    whole = replayed(events)
    assert seeded.result().checksums() == whole.checksums()
    assert seeded.size == whole.size == size_of(whole)
    assert seeded.result().payloads.root() == whole.payloads.root()
    assert first.checksums() == replayed(events[:cut]).checksums()


def size_of(whole: Replayed) -> Size:
    """Counted at the end, by what is there."""
    objects = whole.rows[Surface.BUSINESS_OBJECTS].values()
    return Size(
        rows=sum(map(len, whole.rows.values())),
        payloads=len(whole.payloads.by_address()),
        attribute_bytes=sum(len(encode(one["attributes"])) for one in objects),
    )


def test_a_state_has_the_size_of_what_is_there_and_not_of_what_was_told() -> None:
    history = History().add(initialized())
    sizes: list[int] = []
    changes: list[JsonObject] = [
        {"state": {"a": "x" * 100}},
        {"patch": {"b": "y" * 50}},
        {"patch": {"a": None}},
        {"deleted": True},
    ]
    for number, change in enumerate(changes):
        meta: JsonObject = {"business_object": {"type": "order", "id": "7", **change}}
        history.add(Draft(event_type="order.changed", idempotency_key=f"told/{number}", meta=meta))
        sizes.append(replayed(history.stored).size.attribute_bytes)

    assert sizes == [108, 165, 58, 2]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, ""),
        ({"rows": 6}, "more than 5 rows"),
        ({"payloads": 5}, "more than 4 payloads"),
        ({"attribute_bytes": 4}, "more than 3 bytes of attributes of business objects"),
    ],
)
def test_what_there_is_too_much_of_is_named(more: dict[str, int], told: str) -> None:
    most = Size(rows=5, payloads=4, attribute_bytes=3)

    assert replace(most, **more).beyond(most) == told


def test_lost_events_are_waited_for_and_named() -> None:
    events = two_steps(History()).stored
    replay = Replay(EXECUTION)

    assert replay.take(events[:3] + events[4:]) == 3
    assert replay.take([events[3]]) == 18


def test_an_event_that_was_touched_is_named_and_refused() -> None:
    events = two_steps(History()).stored
    touched = [*events[:5], events[5]._replace(body=events[5].body.replace(b"first", b"worst")), *events[6:]]

    with pytest.raises(Corrupt, match="version 6"):
        replayed(touched)


@pytest.mark.parametrize(
    ("event_type", "meta"),
    [
        ("ctx.updated", {"step": "first", "values": 7}),
        ("step.enter", {"activation": 1, "consumes": True}),
        ("command.claimed", {"worker_id": "w", "attempt": 1, "lease_seconds": "long", "task": 1}),
        ("command.claimed", {"worker_id": "w", "attempt": 1, "lease_seconds": 1e300, "task": 1}),
        ("playbook.initialized", {}),
    ],
)
def test_an_event_of_ours_that_cannot_be_folded_is_named_and_nothing_of_it_counts(
    event_type: str, meta: dict[str, object]
) -> None:
    history = drawn_history(choices(7), moves=10, ends=False)
    history.add(command := issued(history, "next"))
    whole = len(history.stored)
    expected = replayed(history.stored).checksums()
    history.add(
        Draft(
            event_type=event_type, idempotency_key="wrong", command_id=command.command_id, node_name="next", meta=meta
        )
    )
    wrong = history.stored[-1]
    replay, check = Replay(EXECUTION), HistoryCheck(EXECUTION)

    with pytest.raises(Corrupt, match="cannot be folded") as refusal:
        replay.take(history.stored)
    check.take(history.stored)

    for told in (refusal.value.message, check.findings[0].message):
        assert f"version {whole + 1} of execution {EXECUTION}" in told
        assert f"event {wrong.envelope().event_id} of type {event_type!r}" in told
    assert refusal.value.__cause__ is not None
    assert [(one.code, one.stream_version) for one in check.findings] == [("event.not_folded", whole + 1)]
    assert replay.result().checksums() == expected


def test_an_event_whose_body_cannot_be_read_is_named_by_its_place() -> None:
    first, *_ = two_steps(History()).stored
    body = first.body.replace(b'"event_time":"2', b'"event_time":"x')
    checksum = chain_checksum(
        prev_checksum="", stream_version=1, aggregate_version=1, ingest_time=first.ingest_time, body=body
    )

    with pytest.raises(Corrupt, match=rf"version 1 of execution {EXECUTION} \(which cannot be read\)"):
        replayed([first._replace(body=body, checksum=checksum)])


def test_an_event_of_another_history_is_refused() -> None:
    mine, other = two_steps(History()).stored, drawn_history(choices(1), moves=3).stored

    with pytest.raises(Corrupt, match="does not follow the event before it"):
        replayed([*mine[:2], other[2]])
    with pytest.raises(Corrupt, match="an event of execution"):
        replayed(mine, EXECUTION + 1)


def test_payloads_are_counted_by_address_wherever_they_are_named() -> None:
    uses = replayed(drawn_history(choices(4), moves=60).stored).payloads

    assert list(uses.by_address()) == [WORKLOAD.uri]
    assert uses[WORKLOAD.uri].uses > 1
    assert uses.root() != PayloadUses().root()


@pytest.mark.parametrize("others", [("rival", "default"), ("default", "rival")])
@pytest.mark.parametrize("others_first", [True, False])
def test_an_address_of_somebody_else_does_not_stand_for_one_s_own_of_the_same_bytes(
    others: tuple[str, str], *, others_first: bool
) -> None:
    own = refer_to(b"[1]", tenant_id="default", organization_id="default", media_type="application/json")
    foreign = refer_to(b"[1]", tenant_id=others[0], organization_id=others[1], media_type="text/plain")
    alone, both = PayloadUses(), PayloadUses()
    alone.add(encode({"about": own.to_json()}))

    for ref in (foreign, own) if others_first else (own, foreign):
        both.add(encode({"about": ref.to_json()}))
        both = PayloadUses.from_json(both.to_json())

    assert list(both.by_address()) == sorted([own.uri, foreign.uri])
    assert both[own.uri] == alone[own.uri]
    assert both[foreign.uri].media_type == "text/plain"
    assert (len(both), both.root()) == (len(alone), alone.root())


def test_lines_of_events_are_read_as_they_were_written() -> None:
    for event in drawn_history(choices(9), moves=20).stored:
        assert read_event_line(event_line(event)) == event


@pytest.mark.parametrize("version", [2**53 - 1, 2**53, 2**63 - 1, -(2**53), -(2**63)])
def test_lines_of_events_tell_versions_that_json_has_no_number_for(version: int) -> None:
    event = two_steps(History()).stored[0]._replace(aggregate_version=version, stream_version=version)
    line = event_line(event)

    assert read_event_line(line) == event
    assert (f'"stream_version":"{version}"'.encode() in line) == (abs(version) > 2**53 - 1)


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"body":1}', b"\xff"])
def test_what_is_no_line_of_an_event_is_refused(line: bytes) -> None:
    with pytest.raises(Corrupt):
        read_event_line(line)
    whole = event_line(two_steps(History()).stored[0])
    for number in (b'"1"', b'"9007199254740991"', b'"9999999999999999999999"', b'"01152921504606846976"'):
        with pytest.raises(Corrupt):
            read_event_line(whole.replace(b'"stream_version":1', b'"stream_version":' + number))


def test_differences_name_what_came_and_what_became_of_it() -> None:
    events = two_steps(History()).stored
    before, after = replayed(events[:6]).rows, replayed(events).rows

    found = list(differences(before, after))

    assert [(one.surface, one.kind) for one in found] == [
        (Surface.EXECUTION, "changed"),
        *(
            [(Surface.COMMANDS, "changed"), (Surface.COMMANDS, "added")]
            if found[1].before
            else [
                (Surface.COMMANDS, "added"),
                (Surface.COMMANDS, "changed"),
            ]
        ),
    ]
    assert ("status", "RUNNING", "COMPLETED") in list(found[0].fields())
    assert ("state.steps.first.status", "active", "done") in list(found[0].fields())
    assert not list(differences(after, after))


def _object_rows(**attributes: object) -> Rows:
    return {Surface.BUSINESS_OBJECTS: {"order/7": {"status": "open", "attributes": attributes}}}


@pytest.mark.parametrize(
    ("old", "new"),
    [({"paid": True}, {"paid": 1}), ({"paid": 0}, {"paid": False}), ({"paid": [True]}, {"paid": [1]})],
)
def test_what_only_python_takes_for_the_same_differs(old: dict[str, object], new: dict[str, object]) -> None:
    (found,) = differences(_object_rows(**old), _object_rows(**new))

    assert [*found.fields()] == [("attributes.paid", old["paid"], new["paid"])]
    assert not [*differences(_object_rows(n=1), _object_rows(n=1.0))]


def test_null_and_what_is_not_there_are_told_apart() -> None:
    (found,) = differences(_object_rows(), _object_rows(paid=None))
    (gone,) = differences(_object_rows(paid=None), _object_rows())
    (changed,) = differences(_object_rows(paid=None), _object_rows(paid=False))

    assert [*found.fields()] == [("attributes.paid", ABSENT, None)]
    assert found.to_json()["changes"] == [{"field": "attributes.paid", "to": None}]
    assert gone.to_json()["changes"] == [{"field": "attributes.paid", "from": None}]
    assert changed.to_json()["changes"] == [{"field": "attributes.paid", "from": None, "to": False}]


def test_a_point_is_one_thing() -> None:
    with pytest.raises(InvalidInput):
        Point(event_id=1, stream_version=1)
    with pytest.raises(InvalidInput):
        Point(stream_version=-1)
    with pytest.raises(InvalidInput):
        Point(time=datetime(2026, 1, 1))
    assert Point(time=datetime(2026, 1, 1, tzinfo=UTC))


def test_a_shuffled_stream_alone_is_put_in_order() -> None:
    choose = choices(3)
    events = drawn_history(choose, moves=15).stored
    replay = Replay(EXECUTION)
    replay.take(shuffled_delivery(choose, events, loss=0.0))

    assert replay.result().checksums() == replayed(events).checksums()
