"""Verdicts for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from noetl_contracts.clients.find_payloads import READ_UP_TO
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.verdict import Verdict
from noetl_core.surfaces.shapes import Surface

from noetl_cli.shown.tables import table_lines
from noetl_cli.shown.text import one_line
from noetl_cli.verify.bulk import BulkReport

MAX_SHOWN: Final = 50
_TOLD: Final = {"present": f"present (larger than {READ_UP_TO // 1024 // 1024} MiB, so not read)"}


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """The two sides of each surface."""
    yield f"execution {verdict.execution_id}: {verdict.events} events, compared at version {verdict.version}"
    if verdict.upcasters:
        told = verdict.live_upcasters[:16] or "unknown"
        live = "the same live" if verdict.live_upcasters == verdict.upcasters else f"live rows: {told}"
        yield f"registry of upcasters {verdict.upcasters[:16]}, {live}"
    table = [("SURFACE", "FROM THE LOG", "LIVE", "")]
    for surface in Surface:
        replayed, live = verdict.replayed.get(surface, ""), verdict.live.get(surface, "")
        told = "equal" if replayed and replayed == live else "DIFFERS" if replayed and live else "not compared"
        table.append((str(surface), replayed[:16] or "-", live[:16] or "-", told))
    yield from table_lines(table)


def gate_lines(found: Mapping[str, Sequence[Finding]]) -> Iterator[str]:
    """Which gates were passed."""
    table = [("GATE", "OUTCOME")]
    table += [(name, f"{len(one)} found" if one else "ok") for name, one in found.items()]
    yield from table_lines(table)


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """One line each; messages name the event or the row, in words that may be anybody's."""
    for one in findings:
        yield one_line(f"{one.code}: {one.message}")


def bulk_lines(report: BulkReport) -> Iterator[str]:
    """What is wrong, execution by execution, and the sum of it."""
    for verdict in report.failed[:MAX_SHOWN]:
        for finding in verdict["findings"]:
            yield one_line(f"execution {verdict['execution_id']}: {finding['code']}: {finding['message']}")
    if len(report.failed) > MAX_SHOWN:
        yield f"and {len(report.failed) - MAX_SHOWN} executions more, which -o json lists"
    if report.unsettled:
        yield f"{report.unsettled} executions moved whenever they were looked at: try again"
    if report.missing:
        yield f"{report.missing} executions were not looked at"
    if report.other_registry:
        yield (
            f"{report.other_registry} executions have rows that were folded with another registry of upcasters; those "
            "of them that are not listed come to the same"
        )
    if report.payloads is not None:
        told = ", ".join(f"{number} {_TOLD.get(status, status)}" for status, number in report.payloads.items())
        yield f"payloads: {told or 'none'}"
    rate = report.events / report.seconds if report.seconds else 0.0
    yield (
        f"{report.executions} executions, {report.events} events in {report.seconds:.1f} s ({rate:,.0f} events/s): "
        + ("proved" if report.is_proved else f"NOT PROVED, {len(report.failed)} failed")
    )
