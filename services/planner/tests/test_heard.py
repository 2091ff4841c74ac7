"""What is believed of what was said about a log, and what is kept of it."""

from __future__ import annotations

from noetl_core.envelope import StoredEvent
from noetl_planner.application.heard import MAX_EVENTS, Heard
from noetl_testkit.outbox_rows import history


def events(count: int) -> list[StoredEvent]:
    return [row.stored for row in history(1, count)]


def test_what_came_early_is_there_when_its_turn_comes_and_what_came_again_is_not() -> None:
    first, second, third = events(3)
    heard = Heard()
    for event in (third, second, first, second):
        heard.keep(event)

    assert heard.wanted_version == 3
    assert heard.pop(1) == first
    heard.drop_until(2)
    assert (heard.pop(2), heard.pop(3)) == (None, third)


def test_more_than_has_room_is_wanted_all_the_same() -> None:
    told = events(MAX_EVENTS + 2)
    heard = Heard()
    for event in told:
        heard.keep(event)

    assert heard.wanted_version == MAX_EVENTS + 2
    assert heard.pop(MAX_EVENTS) == told[MAX_EVENTS - 1]
    assert heard.pop(MAX_EVENTS + 1) is None


def test_what_the_log_does_not_have_is_forgotten_but_not_what_the_bus_has_told() -> None:
    first, second = events(2)
    heard = Heard()
    heard.begin_with_hearsay()
    heard.keep(first)
    heard.keep(second)
    assert heard.is_hearsay
    heard.publish(1)

    heard.forget()

    assert (heard.is_hearsay, heard.wanted_version, heard.pop(1)) == (False, 1, None)


def test_nothing_is_hearsay_once_the_bus_has_told_of_the_log() -> None:
    heard = Heard()
    heard.publish(1)

    heard.begin_with_hearsay()

    assert not heard.is_hearsay


def test_a_log_that_was_read_to_its_head_goes_no_further() -> None:
    heard = Heard()
    heard.begin_with_hearsay()
    heard.want(9)

    heard.read_until(4)

    assert (heard.wanted_version, heard.is_hearsay) == (4, False)


def test_what_was_told_while_the_log_was_read_is_still_wanted() -> None:
    _, _, third = events(3)
    heard = Heard()
    heard.want(2)
    heard.keep(third)

    heard.read_until(2)

    assert heard.wanted_version == 3
    assert heard.pop(3) == third
    heard.keep(third)
    heard.read_until(1)
    assert heard.wanted_version == 1, "what lies between is not known, and whoever compares heads says how far it goes"
