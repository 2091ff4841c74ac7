"""How long a task waits: as its rule says, and as a server asks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.policy import Retry
from noetl_worker.application.retry_after import asked_pause

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": " 90 "}, 90.0),
        ({"Retry-After": "Thu, 01 Jan 2026 12:02:00 GMT"}, 120.0),
        ({"Retry-After": "Thursday, 01-Jan-26 12:02:00 GMT"}, 120.0),
        ({"Retry-After": "Thu Jan  1 12:02:00 2026"}, 120.0),
        ({"Retry-After": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"Retry-After": "Thu, 01 Jan 2026 09:00:30 GMT", "Date": "Thu, 01 Jan 2026 09:00:00 GMT"}, 30.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "²"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_pause(refused(429, headers), now=NOW) == seconds


def test_only_a_server_that_has_too_many_requests_is_left_alone() -> None:
    assert asked_pause(refused(503, {"Retry-After": "7"}), now=NOW) is None
    assert asked_pause(Outcome(data=1), now=NOW) is None


@pytest.mark.parametrize(
    ("backoff", "runs"),
    [(None, [5000.0] * 3), ("linear", [5000.0, 10_000, 15_000]), ("exponential", [5000.0, 10_000, 20_000])],
)
def test_delays_are_as_long_as_the_rule_says(backoff: str | None, runs: list[float]) -> None:
    retry = Retry(attempts=9, delay_seconds=5000.0, backoff=backoff)

    assert [retry.delay(run=run, chance=lambda: 0.0) for run in (1, 2, 3)] == runs
    assert retry.delay(run=5000, chance=lambda: 1.0) < 2 * 366 * 86_400


def refused(status: int, headers: dict[str, str]) -> Outcome:
    return Outcome.failed(
        kind=ErrorKind.RATE_LIMIT, code="HTTP_429", message="slow down", http={"status": status, "headers": {**headers}}
    )
