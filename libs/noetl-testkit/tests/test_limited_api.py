"""The test API refuses what is above its rate, and says when to come again."""

from __future__ import annotations

from http.client import HTTPConnection
from urllib.parse import urlsplit

from noetl_testkit.limited_api import Allowance, limited_api


def test_no_second_has_more_answers_than_are_allowed_and_the_first_has_none() -> None:
    now = 100.0
    allowance = Allowance(3, clock=lambda: now)

    assert not allowance.take(), "others have used it up"
    now = 100.9
    assert not allowance.take()
    now = 101.0
    assert [allowance.take() for _ in range(4)] == [True, True, True, False]
    now = 101.9
    assert not allowance.take(), "of any second, not of each by the clock"
    now = 102.0
    assert [allowance.take() for _ in range(4)] == [True, True, True, False]


def test_replicas_are_processes_that_refuse_each_by_itself() -> None:
    with limited_api(replicas=2, requests_per_second=50) as api:
        connection = HTTPConnection(urlsplit(api.addresses[1]).netloc, timeout=30)
        connection.request("GET", "/patients/7/notes")
        refused = connection.getresponse()
        refused.read()
        connection.close()
        counts = api.counts()

    assert (refused.status, refused.getheader("Retry-After")) == (429, "1")
    assert (dict(counts.answered), counts.refused) == ({}, (0, 1))
