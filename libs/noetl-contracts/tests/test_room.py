"""A server that has no room says when to come again, and clients do."""

from __future__ import annotations

import pytest
from noetl_contracts.problem_json import retry_after
from noetl_contracts.room import SPREAD, asked_to_wait, when_there_is_room
from noetl_contracts.status import DETAILS_KEY, _decode, to_grpc_status
from noetl_core.errors import Overloaded, Unavailable


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


async def asked(refusals: int, time: Time, *, patience_seconds: float = 60.0) -> str:
    left = [Overloaded("full", retry_seconds=2.0)] * refusals

    async def ask() -> str:
        if left:
            raise left.pop()
        return "in"

    return await when_there_is_room(
        ask, patience_seconds=patience_seconds, sleep=time.sleep, clock=lambda: time.now, chance=lambda: 1.0
    )


async def test_who_is_sent_away_comes_again_no_sooner_than_he_was_asked_to() -> None:
    time = Time()

    assert await asked(3, time) == "in"
    assert time.slept == [2.0 * (1 + SPREAD)] * 3


async def test_patience_has_an_end() -> None:
    with pytest.raises(Overloaded):
        await asked(100, Time(), patience_seconds=10.0)


def test_the_time_to_wait_travels_over_grpc_and_http() -> None:
    refusal = Overloaded("full", retry_seconds=2.5)
    status = to_grpc_status(refusal)
    report = _decode(status.trailing_metadata)

    assert status.trailing_metadata[0][0] == DETAILS_KEY
    assert report is not None
    assert report.retry_seconds == 2.5
    assert retry_after(refusal) == {"Retry-After": "3"}


def test_only_who_has_no_room_is_left_alone() -> None:
    assert asked_to_wait(Unavailable("away")) == 0.0
    assert asked_to_wait(Overloaded("full", retry_seconds=4.0)) == 4.0
