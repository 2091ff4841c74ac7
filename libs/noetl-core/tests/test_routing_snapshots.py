"""What a planner leaves for the next one is the state that it had, or is not opened."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from noetl_core import routing_snapshots
from noetl_core.canonical import sha256_hex
from noetl_core.executions.events import CtxUpdated
from noetl_core.journal import Journal, Settled
from noetl_core.routing_snapshots import (
    MAX_UNPACKED_BYTES,
    Refusal,
    RoutingSnapshot,
    open_routing,
    rules_digest,
    take_routing,
)
from noetl_core.values import replace
from noetl_testkit.histories import EXECUTION, History, histories, initialized, two_steps

RULES = rules_digest("1.0+abc")


def settled(history: History, version: int = 0) -> Settled:
    """What a planner has come to that had nothing to decide."""
    journal = Journal(EXECUTION)
    journal.extend(history.stored[: version or None])
    journal.advance(at_head=True)
    while journal.undecided is not None:
        journal.settle_undecided()
        journal.advance(at_head=True)
    assert journal.settled is not None
    return journal.settled


def taken(history: History, version: int = 0) -> RoutingSnapshot:
    snapshot = take_routing(settled(history, version), rules=RULES)
    assert snapshot is not None
    return snapshot


def repacked(snapshot: RoutingSnapshot, spelt: bytes) -> RoutingSnapshot:
    """As somebody would forge it who knows how."""
    body = zlib.compress(spelt)
    return replace(snapshot, body=body, body_sha256=sha256_hex(body))


@given(histories())
def test_a_journal_that_begins_with_a_snapshot_comes_to_what_the_whole_log_gives(history: History) -> None:
    for version in range(1, len(history.stored)):
        opened = open_routing(taken(history, version), execution_id=EXECUTION, rules=RULES)
        assert opened == settled(history, version)
        journal = Journal(EXECUTION, begins_with=opened)
        assert (journal.known_version, journal.begun_at, journal.is_settled) == (version, version, True)

        journal.extend(history.stored[max(0, version - 2) :])
        journal.advance(at_head=True)
        while journal.undecided is not None:
            journal.settle_undecided()
            journal.advance(at_head=True)

        assert journal.settled == settled(history)


def test_names_keep_the_order_in_which_they_came() -> None:
    history = History().add(initialized(), CtxUpdated(step="a", values={"later": 1}))
    history.add(CtxUpdated(step="a", values={"earlier": {"z": 1}}))
    before = settled(history)
    assert list(before.state.execution.variables) == ["later", "earlier"]

    after = open_routing(taken(history), execution_id=EXECUTION, rules=RULES)

    assert isinstance(after, Settled)
    assert list(after.state.execution.variables) == ["later", "earlier"]


def test_it_is_sealed_with_the_checksum_of_its_last_event() -> None:
    history = two_steps(History())

    assert taken(history, 9).event_checksum == history.stored[8].checksum
    assert taken(history, 9).stream_version == 9


def test_a_journal_that_waits_for_a_decision_has_nothing_to_leave() -> None:
    journal = Journal(EXECUTION)
    assert journal.settled is None

    journal.extend(History().add(initialized()).stored)
    assert journal.settled is None
    journal.advance(at_head=True)

    assert journal.undecided is not None
    assert journal.settled is None


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda one: replace(one, execution_id=EXECUTION + 1), Refusal.OTHER_EXECUTION),
        (lambda one: replace(one, rules=rules_digest("1.0+abd")), Refusal.OTHER_RULES),
        (lambda one: replace(one, rules=rules_digest("1.0+abc", upcasters="others")), Refusal.OTHER_RULES),
        (lambda one: replace(one, state_format=one.state_format + 1), Refusal.OTHER_FORMAT),
        (lambda one: replace(one, body=one.body[:-1]), Refusal.DAMAGED),
        (lambda one: replace(one, body=b""), Refusal.DAMAGED),
        (lambda one: replace(one, body=one.body[:-1], body_sha256=sha256_hex(one.body[:-1])), Refusal.DAMAGED),
        (lambda one: replace(one, body=one.body + b"x", body_sha256=sha256_hex(one.body + b"x")), Refusal.DAMAGED),
        (lambda one: repacked(one, b"[]"), Refusal.DAMAGED),
        (lambda one: repacked(one, b"\xff"), Refusal.DAMAGED),
        (lambda one: repacked(one, b"[" * 100_000), Refusal.DAMAGED),
        (lambda one: repacked(one, b" " * (MAX_UNPACKED_BYTES + 1)), Refusal.DAMAGED),
        (lambda one: replace(one, stream_version=one.stream_version - 1), Refusal.DAMAGED),
        (
            lambda one: repacked(
                one, zlib.decompress(one.body).replace(str(EXECUTION).encode(), str(EXECUTION + 1).encode())
            ),
            Refusal.OTHER_EXECUTION,
        ),
    ],
)
def test_what_is_wrong_with_it_is_said_and_it_is_not_opened(spoil: object, reason: Refusal) -> None:
    assert callable(spoil)

    assert open_routing(spoil(taken(two_steps(History()), 9)), execution_id=EXECUTION, rules=RULES) is reason


@pytest.mark.parametrize("bound", ["MAX_BYTES", "MAX_UNPACKED_BYTES"])
def test_a_state_that_is_too_large_is_not_kept(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = settled(two_steps(History()), 9)
    monkeypatch.setattr(routing_snapshots, bound, 100)

    assert take_routing(state, rules=RULES) is None
