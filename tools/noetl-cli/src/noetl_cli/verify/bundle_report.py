"""A bundle of evidence in words, for whoever does not read JSON: what was checked, what came out, what is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from noetl_core.errors import NoetlError
from noetl_core.evidence.bundle import STEPS, gate_names
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.gates import GATES
from noetl_core.evidence.verdict import Verdict
from noetl_core.surfaces.checksums import total_checksum
from noetl_core.surfaces.shapes import Surface
from noetl_core.timestamps import format_time

from noetl_cli.verify.check_bundle import CheckedBundle
from noetl_cli.verify.report_blocks import Block, Commands, Report, Section, Sentence, Table
from noetl_cli.verify.report_files import file_rows

MAX_ROWS: Final = 1_000
"""Of one table; the files have the rest."""
MAX_CELL: Final = 2_000
NOT_TOLD: Final = "not told"
_OF_THE_BUNDLE: Final[Mapping[str, str]] = {
    "artifact_index": "Every file is in the index, and has the size and the digest that the index says.",
    "manifest": "The manifest has its shape, and all steps were done in their order when the evidence was made.",
    "report": "The verdict in the bundle is the one that its files give.",
}
_FACT: Final = ("what", "value")


def bundle_report(checked: CheckedBundle) -> Report:
    """Everything there is to say; the same bundle gives the same report, wherever it is."""
    whose = f"execution {checked.execution_id}" if checked.execution_id else "an execution that it does not name"
    number = len(checked.findings)
    if number:
        verdict = f"THIS EVIDENCE DOES NOT HOLD: {number} {'FINDING' if number == 1 else 'FINDINGS'}"
        summary = (
            "What follows was read from files of which not all can be believed. Nothing is proved by them; the "
            "findings say what is wrong and where."
        )
    else:
        verdict = "THIS EVIDENCE HOLDS"
        summary = (
            "The events are whole and unchanged by their checksums, what was live is what they give, every payload "
            "that they refer to was there, and every file of this bundle is the one that its index names."
        )
    return Report(
        title=f"Evidence of {whose}",
        holds=not number,
        verdict=verdict,
        summary=summary,
        sections=[
            Section(heading="What was verified", blocks=[_subject(checked)]),
            Section(heading="Gates", blocks=[_gates(checked)]),
            Section(heading="Findings", blocks=[_findings(checked)]),
            Section(heading="Surfaces, live beside replayed", blocks=_surfaces(checked)),
            Section(heading="Chain of events", blocks=[_chain(checked)]),
            Section(heading="Payloads", blocks=_payloads(checked)),
            Section(heading="Steps when the evidence was made", blocks=[_steps(checked)]),
            Section(heading="Files", blocks=_capped(_FILES, file_rows(checked), "index.json")),
            Section(heading="How to check it again", blocks=_again(checked)),
        ],
    )


_FILES: Final = ("role", "path", "bytes", "sha256 in the index", "as found")
_PAYLOADS: Final = ("sha256", "status", "bytes", "uses", "media type", "came along")


def _subject(checked: CheckedBundle) -> Table:
    manifest, verdict = checked.manifest, checked.verdict
    evidence = checked.evidence
    replay = evidence.replay if evidence is not None else None
    live = evidence.live_rows if evidence is not None else None
    first, last = _times(checked)
    execution = _first(_at(replay, "rows", "execution"))
    return Table(
        columns=_FACT,
        rows=[
            ("execution", checked.execution_id or NOT_TOLD),
            ("tenant", _text(manifest, "config", "tenant_id")),
            ("organization", _text(manifest, "config", "organization_id")),
            ("playbook", f"{_text(execution, 'path')}, version {_text(execution, 'version')}"),
            ("status by the log", _text(execution, "status")),
            ("events", f"1 to {verdict.version}" if verdict is not None and verdict.version else NOT_TOLD),
            ("first event taken into the log", first),
            ("last event taken into the log", last),
            ("had ended when it was verified", _text(manifest, "head", "terminal")),
            ("verified from", _text(manifest, "started_at")),
            ("verified until", _text(manifest, "ended_at")),
            ("live rows exported at", _text(live, "exported_at")),
            ("live rows come from", _text(live, "adapter")),
            ("a projector was asked for its summary", _text(manifest, "config", "projector")),
            ("made by", _text(manifest, "program")),
            ("version of the evidence", _text(manifest, "schema_version")),
            ("format of rows", _text(replay, "format")),
            ("registry of upcasters, by the log", verdict.upcasters or NOT_TOLD if verdict is not None else NOT_TOLD),
            ("registry of upcasters, live rows", verdict.live_upcasters or NOT_TOLD if verdict else NOT_TOLD),
            ("digest of the index", checked.index_sha256),
        ],
    )


def _gates(checked: CheckedBundle) -> Table:
    rows: list[Sequence[str]] = []
    for number, name in enumerate(("artifact_index", "manifest", *gate_names(), "report"), start=1):
        found = checked.found.get(name)
        outcome = "NOT JUDGED" if found is None else f"FAILED, {len(found)} found" if found else "passed"
        rows.append((str(number), name, outcome, _OF_THE_BUNDLE.get(name) or _said_by(name)))
    return Table(columns=("no.", "gate", "outcome", "what it says when it is passed"), rows=rows)


def _said_by(gate: str) -> str:
    return (GATES[gate].__doc__ or "").splitlines()[0]


def _findings(checked: CheckedBundle) -> Block:
    if not checked.findings:
        return Sentence(text="Nothing was found.")
    rows = [(gate, one.code, _place(one), _cut(one.message)) for gate, found in checked.found.items() for one in found]
    left = len(rows) - MAX_ROWS
    if left > 0:
        rows = [*rows[:MAX_ROWS], ("", "", "", f"and {left} more, which noetl verify bundle -o json lists")]
    return Table(columns=("gate", "finding", "where", "message"), rows=rows)


def _place(one: Finding) -> str:
    parts = [
        f"event {one.stream_version}" if one.stream_version else "",
        one.event_type,
        f"id {one.event_id}" if one.event_id else "",
        one.surface,
    ]
    return _cut(", ".join(part for part in parts if part)) or "the evidence"


def _surfaces(checked: CheckedBundle) -> list[Block]:
    verdict = checked.verdict
    if verdict is None:
        return [Sentence(text="Nothing was compared.")]
    live = checked.evidence.live_rows if checked.evidence is not None else None
    rows = [_surface_row(verdict, surface, _text(live, "row_counts", surface)) for surface in Surface]
    rows.append(("all six", "", "", _total(verdict.live), _total(verdict.replayed), ""))
    table = Table(
        columns=("surface", "live rows", "rows by the log", "checksum live", "checksum replayed", "outcome"), rows=rows
    )
    return [Sentence(text=f"Compared at version {verdict.version}."), table]


def _surface_row(verdict: Verdict, surface: Surface, live_rows: str) -> tuple[str, ...]:
    live, replayed = verdict.live.get(surface, ""), verdict.replayed.get(surface, "")
    outcome = "equal" if live and live == replayed else "DIFFERS" if live and replayed else "NOT COMPARED"
    by_the_log = str(verdict.rows.get(surface, 0)) if replayed else NOT_TOLD
    return (str(surface), live_rows, by_the_log, live or NOT_TOLD, replayed or NOT_TOLD, outcome)


def _total(surfaces: Mapping[str, str]) -> str:
    return total_checksum({**surfaces}) if surfaces else NOT_TOLD


def _chain(checked: CheckedBundle) -> Table:
    broken = checked.found.get("fetch")
    outcome = "NOT JUDGED" if broken is None else "BROKEN" if broken else "whole and unchanged"
    last = checked.evidence.events[-1] if checked.evidence is not None and checked.evidence.events else None
    return Table(
        columns=_FACT,
        rows=[
            ("the chain is", outcome),
            ("events in the bundle", str(len(checked.evidence.events)) if checked.evidence is not None else NOT_TOLD),
            ("head of the log, version", _text(checked.manifest, "head", "version")),
            ("head of the log, checksum", _text(checked.manifest, "head", "checksum")),
            ("last event in the bundle, version", str(last.stream_version) if last is not None else NOT_TOLD),
            ("last event in the bundle, checksum", _cut(last.checksum) if last is not None else NOT_TOLD),
        ],
    )


def _payloads(checked: CheckedBundle) -> list[Block]:
    replay = checked.evidence.replay if checked.evidence is not None else None
    found = checked.found.get("payload_resolution")
    outcome = "NOT JUDGED" if found is None else f"FAILED, {len(found)} found" if found else "all there"
    counts = Table(
        columns=_FACT,
        rows=[
            ("payloads are", outcome),
            *(
                (name, _text(replay, "payload_summary", name))
                for name in ("total", "verified", "present", "missing", "corrupt")
            ),
            ("root of all digests", _text(replay, "payload_root")),
        ],
    )
    listed = _at(replay, "payloads")
    rows = [
        tuple(_text(one, name) for name in ("sha256", "status", "stored_bytes", "uses", "media_type", "included"))
        for one in (listed if isinstance(listed, list) else ())
    ]
    meaning = "verified: its bytes were read; present: it is there, and was too large to be read on the way."
    return [counts, Sentence(text=meaning), *_capped(_PAYLOADS, rows, "replay.json")]


def _steps(checked: CheckedBundle) -> Block:
    steps = _at(checked.manifest, "steps")
    if not isinstance(steps, list):
        return Sentence(text="The manifest does not tell them.")
    rows = [
        (_text(one, "name"), _text(one, "started_at"), _text(one, "duration_ms"), _outcome(one))
        for one in steps[: len(STEPS) * 2]
    ]
    return Table(columns=("step", "started at", "milliseconds", "outcome"), rows=rows)


def _outcome(step: Any) -> str:
    return "passed" if _at(step, "return_code") == 0 else f"FAILED, {_text(step, 'findings')} found"


def _again(checked: CheckedBundle) -> list[Block]:
    return [
        Sentence(text="The bundle needs no server. In the directory that holds it, as DIR, with NoETL installed:"),
        Commands(lines=[f"noetl verify bundle DIR --index-sha256 {checked.index_sha256}", "noetl verify render DIR"]),
        Sentence(
            text="Somebody who can write the bundle can make another one that is as whole. Compare the digest of the "
            "index, or the checksum of the last event, with what was told elsewhere when the evidence was made."
        ),
        Sentence(
            text="By hand: every file has the SHA-256 that the table above names, and the index that of the command "
            "above (sha256sum). The checksum of a surface is the SHA-256 of its rows in the order of their keys' "
            "bytes, each as canonical JSON (RFC 8785) and a line feed; that of all six is the SHA-256 of the "
            "canonical JSON object of the six."
        ),
    ]


def _times(checked: CheckedBundle) -> tuple[str, str]:
    events = checked.evidence.events if checked.evidence is not None else ()
    try:
        return (format_time(events[0].ingest_time), format_time(events[-1].ingest_time)) if events else (NOT_TOLD,) * 2
    except (NoetlError, ValueError, OverflowError):
        return NOT_TOLD, NOT_TOLD


def _capped(columns: Sequence[str], rows: Sequence[Sequence[str]], file: str) -> list[Block]:
    if not rows:
        return [Sentence(text="There are none.")]
    table = Table(columns=columns, rows=rows[:MAX_ROWS])
    left = len(rows) - MAX_ROWS
    return [table, Sentence(text=f"And {left} more, which {file} lists.")] if left > 0 else [table]


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _at(document: Any, *path: str) -> Any:
    """What stands somewhere in a document that anybody may have written; None if it is not there."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _text(document: Any, *path: str) -> str:
    value = _at(document, *path)
    if value is None or value == "":
        return NOT_TOLD
    return ("yes" if value else "no") if isinstance(value, bool) else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}… ({len(text)} characters)"
