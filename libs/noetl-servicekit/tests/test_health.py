import pytest
from noetl_servicekit.health import CheckResult, Health


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_process_without_checks_is_ready() -> None:
    assert Health().report().ready


def test_a_condition_is_down_until_it_is_set_up_and_says_why() -> None:
    health = Health()
    postgres = health.condition("postgres")
    assert health.report().checks == (CheckResult(name="postgres", ok=False, detail="starting"),)

    postgres.up("16.4")
    assert health.report().ready

    postgres.down("connection refused")
    assert not health.report().ready
    assert health.report().checks[0].detail == "connection refused"


def test_a_check_is_asked_each_time() -> None:
    problems: list[str] = ["behind"]
    health = Health()
    health.check("lag", lambda: problems[0] if problems else None)
    assert health.report().checks == (CheckResult(name="lag", ok=False, detail="behind"),)

    problems.clear()
    assert health.report().ready


def test_a_loop_that_falls_silent_is_noticed_and_forgiven_when_it_speaks_again() -> None:
    clock = FakeClock()
    health = Health(clock=clock)
    beat = health.watch("drain", 5.0)
    assert not health.report().ready  # it has not begun

    beat()
    clock.now += 5.0
    assert health.report().ready

    clock.now += 0.5
    report = health.report()
    assert not report.ready
    assert report.checks[0].detail == "silent for 5.5 s, 5 s are allowed"

    beat()
    assert health.report().ready


def test_one_check_that_fails_is_enough() -> None:
    health = Health()
    health.condition("postgres").up()
    health.condition("nats")

    assert not health.report().ready
    health.forget("nats")
    health.forget("nats")
    assert health.report().ready


def test_a_draining_process_is_not_ready_whatever_its_checks_say() -> None:
    health = Health()
    health.condition("postgres").up()
    health.drain()

    assert not health.report().ready
    assert [check.name for check in health.report().checks if not check.ok] == ["draining"]


def test_two_checks_of_one_name_are_a_mistake() -> None:
    health = Health()
    health.condition("postgres")

    with pytest.raises(ValueError, match="already a check named 'postgres'"):
        health.watch("postgres", 1.0)
