"""What is said of a bulk verification is about its work."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from noetl_adapters.spark.jobs import SparkJobs, job_settings
from noetl_adapters.verify.share_payloads import SharePayloads
from noetl_adapters.verify.shares import ShareReport
from noetl_cli.connection import Server
from noetl_cli.verify import bulk
from noetl_contracts.clients import find_payloads
from noetl_core.canonical import encode
from noetl_core.evidence.verdict import Verdict
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead
from noetl_core.replay.payload_uses import PayloadUses
from noetl_testkit.verifying import Payloads, ref_to

HEADS = [
    StreamHead(
        execution_id=number,
        tenant_id="acme",
        organization_id="ops",
        version=100,
        checksum="",
        terminal=True,
        updated_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    for number in (1, 2)
]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowJobs(SparkJobs):
    """Its session takes seven seconds to start; there is nothing behind it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(job_settings())
        self._clock = clock

    def session(self) -> Any:
        self._clock.now += 7.0
        return object()


class Work:
    """A second an execution, of some of them."""

    def __init__(self, clock: Clock, *executions: int) -> None:
        self._clock = clock
        self._executions = executions

    def __call__(self, *arguments: Any) -> ShareReport:
        report = ShareReport()
        for one in self._executions:
            self._clock.now += 1.0
            report.add(Verdict(execution_id=one, version=100, events=100))
        return report


@pytest.mark.parametrize(("seen", "missing"), [((1, 2), 0), ((1, 3), 1)], ids=["all", "another instead of one"])
def test_the_start_of_a_session_is_no_work_and_what_was_not_seen_is_missing(
    monkeypatch: pytest.MonkeyPatch, seen: tuple[int, ...], missing: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(bulk, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(bulk, "_on_spark", Work(clock, *seen))

    report = bulk.verify_all(
        Server(address="nowhere:1", token=None),
        bulk.Bulk(),
        bulk.Everything(heads=HEADS, hidden={}),
        SlowJobs(clock),
        lambda executions, events: None,
    )

    assert (report.seconds, report.to_json()["events_per_second"]) == (2.0, 100.0)
    assert (report.missing, report.is_proved) == (missing, not missing)


async def test_an_address_of_somebody_else_hides_no_payload_of_one_s_own() -> None:
    payloads: Any = Payloads()
    own, others = ref_to(b"[1]"), ref_to(b"[1]", "rival")
    payloads.store.objects |= {own.uri: b"[1]", others.uri: b"[1]"}
    share, uses = SharePayloads(payloads), PayloadUses()
    for ref in (others, own):
        uses.add(encode({"about": ref.to_json()}))

    found = await share(uses, Scope(tenant_id="default", organization_id="default"))

    assert [(one.code, others.uri in one.message) for one in found] == [("payload.missing", True)]
    assert share.counts() == {"missing": 1, "verified": 1}


async def test_a_large_payload_that_was_cut_short_is_named_though_nobody_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(find_payloads, "READ_UP_TO", 3)
    payloads: Any = Payloads()
    whole, cut = ref_to(b"[1, 2, 3]"), ref_to(b"[4, 5, 6]")
    payloads.store.objects |= {whole.uri: b"[1, 2, 3]", cut.uri: b"[4, 5"}
    share, uses = SharePayloads(payloads), PayloadUses()
    for ref in (whole, cut):
        uses.add(encode({"about": ref.to_json()}))

    found = await share(uses, Scope(tenant_id="default", organization_id="default"))

    told = f"stored_bytes of payload {cut.sha256} is 5, events say 9"
    assert [(one.code, one.message) for one in found] == [("payload.differs", told)]
    assert (payloads.fetched, share.counts()) == ([], {"present": 2})
