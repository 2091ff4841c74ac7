"""Tasks that last leave threads to queries, and share what is left."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Mapping

import pytest
from noetl_adapters.spark.lasting_tasks import LastingTasks
from noetl_adapters.spark.seat_shares import SeatShares
from noetl_adapters.spark.seats import Seats, Taken


@pytest.mark.parametrize(("threads", "seats"), [(1, 1), (2, 1), (3, 2), (4, 3), (12, 8)])
def test_some_threads_are_left_to_queries(threads: int, seats: int) -> None:
    with Seats(lambda: threads).taken(100, user="a") as taken:
        assert taken.count == seats


def test_nobody_gets_more_than_wanted_and_what_is_given_back_is_there_again() -> None:
    seats = Seats(lambda: 6)
    with seats.taken(1, user="a") as first, seats.taken(9, user="b") as second:
        assert (first.count, second.count) == (1, 2)
    with seats.taken(9, user="a") as taken:
        assert taken.count == 4


def test_who_waits_is_next() -> None:
    seats = Seats(lambda: 3)
    got: list[int] = []

    def wait() -> None:
        with seats.taken(2, user="a") as taken:
            got.append(taken.count)

    with seats.taken(2, user="a"):
        waiting = threading.Thread(target=wait)
        waiting.start()
    waiting.join(timeout=60)

    assert got == [2]


def test_a_task_that_takes_longer_keeps_no_seat_but_its_own() -> None:
    seats = Seats(lambda: 3)
    with seats.taken(2, user="a") as first:
        first.give_back()
        with seats.taken(2, user="a") as second:
            assert (first.count, second.count) == (2, 1)
    with seats.taken(9, user="a") as all_of_them:
        assert all_of_them.count == 2


def test_who_no_longer_wants_one_gets_none() -> None:
    seats = Seats(lambda: 2)
    with seats.taken(1, user="a"), seats.taken(1, user="b", is_wanted=lambda: False) as taken:
        assert taken.count == 0
    assert seats.total == 1


def slices(total: int, stages: Mapping[str, float], *, until: float) -> Counter[str]:
    """How long executions have had seats, of stages that want as many as there are, again and again.

    The execution is the first letter of a stage; it is said how long a slice of the stage takes.
    """
    shares, now, used = SeatShares(), 0.0, Counter[str]()
    sitting: dict[str, tuple[float, int]] = {}
    for stage in stages:
        shares.come(stage, stage[0], now=now)
    while now < until:
        while shares.taken < total and (served := shares.next(total=1, now=now)) is not None:
            stage = str(served)
            sitting[stage] = (now + stages[stage], shares.take(stage, 100, total=total, now=now))
        stage = min(sitting, key=lambda one: sitting[one][0])
        ends_at, count = sitting.pop(stage)
        used[stage[0]] += round(count * stages[stage])
        now = ends_at
        shares.give_back(stage[0], count, now=now)
        shares.go(stage, stage[0], now=now)
        shares.come(stage, stage[0], now=now)
    return used


@pytest.mark.parametrize(
    ("total", "stages"),
    [
        pytest.param(1, {"a1": 10, "b1": 10}, id="one seat"),
        pytest.param(8, {"a1": 10, "b1": 10}, id="many seats"),
        pytest.param(1, {"a1": 10, "a2": 10, "a3": 10, "b1": 10}, id="more stages"),
        pytest.param(2, {"a1": 10, "a2": 10, "b1": 10}, id="more stages and seats"),
        pytest.param(1, {"a1": 40, "b1": 10, "c1": 10}, id="longer frames"),
        pytest.param(2, {"a1": 10, "b1": 10, "c1": 10}, id="fewer seats than executions"),
    ],
)
def test_executions_that_want_all_seats_get_as_much_of_them(total: int, stages: dict[str, float]) -> None:
    used = slices(total, stages, until=2000.0)

    assert sum(used.values()) == pytest.approx(2000.0 * total, rel=0.08), "hardly a seat is left empty"
    assert min(used.values()) == pytest.approx(max(used.values()), rel=0.1)


def test_who_comes_gets_the_first_seat_that_is_free_and_a_share_after_that() -> None:
    shares = SeatShares()
    shares.come("a", "a", now=0.0)
    assert shares.take("a", 100, total=8, now=0.0) == 8
    shares.come("b", "b", now=5.0)
    shares.come("a again", "a", now=6.0)

    shares.give_back("a", 1, now=10.0)
    assert shares.next(total=8, now=10.0) == "b"
    assert shares.take("b", 100, total=8, now=10.0) == 1
    shares.give_back("a", 7, now=11.0)
    assert shares.take("a again", 100, total=8, now=11.0) == 4
    shares.give_back("b", 1, now=12.0)
    shares.go("b", "b", now=12.0)
    shares.come("b again", "b", now=12.0)
    assert shares.take("b again", 100, total=8, now=12.0) == 4


def test_what_somebody_had_while_nobody_else_was_there_is_not_held_against_them() -> None:
    shares = SeatShares()
    shares.come("a1", "a", now=0.0)
    shares.take("a1", 1, total=1, now=0.0)
    shares.come("b1", "b", now=3600.0)
    shares.come("a2", "a", now=3600.0)
    shares.give_back("a", 1, now=3600.0)
    shares.go("a1", "a", now=3600.0)

    assert shares.next(total=1, now=3600.0) == "b1"
    shares.take("b1", 1, total=1, now=3600.0)
    shares.come("b2", "b", now=3600.0)
    shares.give_back("b", 1, now=3610.0)
    shares.go("b1", "b", now=3610.0)
    assert shares.next(total=1, now=3610.0) == "a2"


def test_who_is_about_to_come_again_is_waited_for_before_somebody_gets_more_than_a_share() -> None:
    shares = SeatShares()
    for ticket in ("a1", "b1"):
        shares.come(ticket, ticket[0], now=0.0)
        shares.take(ticket, 1, total=2, now=0.0)
    shares.come("a2", "a", now=1.0)
    shares.give_back("b", 1, now=10.0, comes_again=True)
    assert shares.next(total=2, now=10.0) is None, "its task has ended, and its job is about to"
    shares.go("b1", "b", now=10.0)

    assert shares.next(total=2, now=10.1) is None
    shares.come("c1", "c", now=10.1)
    assert shares.next(total=2, now=10.1) == "c1", "who has none is not kept waiting"
    shares.go("c1", "c", now=10.1)
    assert shares.next(total=2, now=12.0) == "a2", "nobody came"


def test_who_has_nothing_left_to_do_is_not_waited_for() -> None:
    seats = Seats(lambda: 3, clock=lambda: 0.0)
    with seats.taken(2, user="a") as done:
        done.give_back()
    with seats.taken(2, user="b") as taken:
        assert taken.count == 2
        taken.give_back(comes_again=True)
        taken.give_back(comes_again=True)
    with seats.taken(2, user="c") as beside:
        assert beside.count == 1


def test_those_who_are_gone_are_forgotten() -> None:
    shares = SeatShares()
    for number in range(100):
        user = f"u{number}"
        shares.come(number, user, now=float(number))
        shares.take(number, 1, total=1, now=float(number))
        shares.give_back(user, 1, now=number + 1.0, comes_again=True)
        shares.go(number, user, now=number + 1.0)

    assert len(shares._users) == 1, "who has just gone may come again"


def test_seats_are_not_given_back_twice_by_tasks_that_end_side_by_side() -> None:
    given: list[int] = []
    taken = Taken(4, lambda count, comes_again: given.append(count))
    threads = [threading.Thread(target=taken.give_back) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    taken.give_back_all()
    taken.give_back()

    assert sum(given) == 4


def test_who_cannot_be_told_how_many_threads_there_are_leaves_nothing_behind() -> None:
    answers = itertools.chain([RuntimeError("the JVM is gone")], itertools.repeat(None))

    def threads() -> int:
        if error := next(answers):
            raise error
        return 6

    seats = Seats(threads)
    with pytest.raises(RuntimeError), seats.taken(1, user="a"):
        pass
    with seats.taken(9, user="b") as taken:
        assert taken.count == 4, "all of them: nobody else is there"


def test_a_task_is_useless_when_all_that_it_has_was_released() -> None:
    lasting = LastingTasks()
    with lasting.task("call", [0, 2]) as first, lasting.task("call", [1]) as second, lasting.task("other", [0]):
        assert first != second
        assert lasting.useless("call", [0]) == ()
        assert lasting.useless("call", [2, 0]) == (first,)
        assert lasting.useless("call", [0, 1, 2]) == (first, second)
    assert lasting.useless("call", [0, 1, 2]) == ()
