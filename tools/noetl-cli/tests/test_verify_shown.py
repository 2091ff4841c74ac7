"""What people and programs are told of registries and findings."""

from __future__ import annotations

from noetl_adapters.verify.shares import UNKNOWN, ShareReport
from noetl_cli.verify.bulk import BulkReport
from noetl_cli.verify.shown import bulk_lines, finding_lines, verdict_lines
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.verdict import Verdict
from noetl_core.surfaces.shapes import Surface

OURS, OTHER = "a" * 64, "b" * 64
SUMS = {str(surface): "0" * 64 for surface in Surface}


def verdict(live_upcasters: str, execution_id: int = 1) -> Verdict:
    return Verdict(
        execution_id=execution_id,
        version=3,
        events=3,
        replayed=SUMS,
        live=SUMS,
        upcasters=OURS,
        live_upcasters=live_upcasters,
    )


def test_both_registries_stand_above_the_surfaces() -> None:
    told = [list(verdict_lines(verdict(live)))[1] for live in (OURS, OTHER, "")]

    assert told == [
        f"registry of upcasters {'a' * 16}, the same live",
        f"registry of upcasters {'a' * 16}, live rows: {'b' * 16}",
        f"registry of upcasters {'a' * 16}, live rows: unknown",
    ]


def test_rows_of_other_registries_are_counted_over_all_shares() -> None:
    total = ShareReport()
    for live in ((OURS, OTHER), (OTHER, "")):
        share = ShareReport()
        for one in live:
            share.add(verdict(one))
        share.add(Verdict(execution_id=9, version=0, events=0))
        total.add_all(share)

    report = BulkReport(
        executions=6, events=12, seconds=1.0, upcasters=total.upcasters, other_registry=total.other_registry
    )

    assert report.to_json()["upcasters"] == {OURS: 1, OTHER: 2, UNKNOWN: 1}
    assert report.to_json()["other_registry"] == 3
    assert report.is_proved
    assert next(iter(bulk_lines(report))).startswith("3 executions have rows that were folded with another registry")


def test_what_a_finding_quotes_is_shown_and_not_obeyed() -> None:
    finding = Finding(code="parity.row_changed", message="step is '\x1b[2J\u202e'\nproved")
    failed = [{"execution_id": "1", "findings": [finding.to_json()]}]
    report = BulkReport(executions=1, events=1, seconds=1.0, failed=failed)

    for told in (next(finding_lines([finding])), next(iter(bulk_lines(report)))):
        assert told.endswith("parity.row_changed: step is '\\x1b[2J\\x202e' ⏎ proved")


def test_a_share_says_which_executions_it_saw() -> None:
    total = ShareReport()
    for executions in ((1, 2), (2, 3)):
        share = ShareReport()
        for one in executions:
            share.add(verdict(OURS, one))
        total.add_all(share)

    assert (total.seen, total.executions) == ({1, 2, 3}, 3)
