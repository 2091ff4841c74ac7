"""Verdicts for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from noetl_core.evidence.findings import Finding
from noetl_core.evidence.verdict import Verdict
from noetl_core.surfaces.shapes import Surface

from noetl_cli.shown.tables import table_lines


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """The two sides of each surface."""
    yield f"execution {verdict.execution_id}: {verdict.events} events, compared at version {verdict.version}"
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
    """One line each; messages name the event or the row."""
    for one in findings:
        yield f"{one.code}: {one.message}"
