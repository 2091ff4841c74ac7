"""Tasks that last leave threads to queries, and share what is left."""

from __future__ import annotations

import threading

import pytest
from noetl_adapters.spark.seats import Seats


@pytest.mark.parametrize(("threads", "seats"), [(1, 1), (2, 1), (3, 2), (4, 3), (12, 8)])
def test_some_threads_are_left_to_queries(threads: int, seats: int) -> None:
    with Seats(lambda: threads).taken(100) as taken:
        assert taken.count == seats


def test_nobody_gets_more_than_wanted_and_what_is_given_back_is_there_again() -> None:
    seats = Seats(lambda: 6)
    with seats.taken(1) as first, seats.taken(9) as second:
        assert (first.count, second.count) == (1, 2)
    with seats.taken(9) as taken:
        assert taken.count == 4


def test_who_waits_is_next() -> None:
    seats = Seats(lambda: 3)
    got: list[int] = []

    def wait() -> None:
        with seats.taken(2) as taken:
            got.append(taken.count)

    with seats.taken(2):
        waiting = threading.Thread(target=wait)
        waiting.start()
    waiting.join(timeout=60)

    assert got == [2]


def test_a_task_that_takes_longer_keeps_no_seat_but_its_own() -> None:
    seats = Seats(lambda: 3)
    with seats.taken(2) as first:
        first.give_back()
        with seats.taken(2) as second:
            assert (first.count, second.count) == (2, 1)
    with seats.taken(9) as all_of_them:
        assert all_of_them.count == 2


def test_who_no_longer_wants_one_gets_none() -> None:
    seats = Seats(lambda: 2)
    with seats.taken(1), seats.taken(1, is_wanted=lambda: False) as taken:
        assert taken.count == 0
    assert seats.total == 1
