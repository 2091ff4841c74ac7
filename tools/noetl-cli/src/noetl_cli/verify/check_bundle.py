"""Checks a bundle where it is: no server, no database, nothing but its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noetl_core.canonical import encode, normalize
from noetl_core.envelope import StoredEvent
from noetl_core.errors import NoetlError
from noetl_core.evidence import strict
from noetl_core.evidence.bundle import (
    INDEX_SHAPE,
    MANIFEST_SHAPE,
    PAYLOADS,
    Artifact,
    check_index,
    check_manifest,
    check_subject,
    gate_names,
)
from noetl_core.evidence.chain import Head
from noetl_core.evidence.documents import SCHEMA
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.gates import Evidence, PayloadFile, guarded, judge
from noetl_core.evidence.verdict import Verdict
from noetl_core.replay.event_lines import event_line, read_event_line

from noetl_cli.verify.bundle_files import BundleReader


@dataclass(slots=True, kw_only=True)
class CheckedBundle:
    """What is wrong, by the gate that found it."""

    index_sha256: str
    execution_id: str = ""
    found: dict[str, list[Finding]] = field(default_factory=dict)
    verdict: Verdict | None = None
    index: Any = None
    manifest: Any = None
    files: Sequence[Artifact] = ()
    """What is there, as it is; the index is not among them."""
    evidence: Evidence | None = None
    """What the gates judged; None if the manifest does not even say of whom it is."""

    @property
    def findings(self) -> list[Finding]:
        """All of them, each once."""
        return list(dict.fromkeys(one for found in self.found.values() for one in found))

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "execution_id": self.execution_id or None,
            "index_sha256": self.index_sha256,
            "proved": not self.findings,
            "gates": {name: len(found) for name, found in self.found.items()},
            "verdict": self.verdict.to_json() if self.verdict is not None else None,
            "findings": [one.to_json() for one in self.findings],
        }


def check_bundle(directory: Path, *, index_sha256: str | None = None) -> CheckedBundle:
    """Every gate again, from the files alone; `index_sha256` is what somebody was told when it was made."""
    reader = BundleReader(directory)
    checked = CheckedBundle(index_sha256=reader.index_sha256())
    there, others = reader.found()
    index = checked.index = reader.index()
    checked.files = there
    checked.found["artifact_index"] = check_index(index, there, others)
    if index_sha256 is not None and index_sha256 != checked.index_sha256:
        told = f"the index has digest {checked.index_sha256}, not {index_sha256}: this is another bundle"
        checked.found["artifact_index"].append(Finding(code="bundle.another", message=told))
    manifest = checked.manifest = reader.document("manifest")
    if later := _made_later(manifest):
        checked.found["manifest"] = [later]
        return checked
    if wrong := strict.problems(manifest, MANIFEST_SHAPE, "manifest"):
        checked.found["manifest"] = [Finding(code="manifest", message=one) for one in wrong]
        return checked
    checked.execution_id = manifest["config"]["execution_id"]
    roles = {one.role: one.path for one in _listed(index) if one.role != "payload"}
    execution_id = int(checked.execution_id)
    checked.found["manifest"] = check_manifest(
        manifest, roles=roles, execution_id=execution_id, index_version=_version_of(index)
    )
    events, unreadable = _events(reader)
    evidence = checked.evidence = Evidence(
        execution_id=execution_id,
        head=Head(version=manifest["head"]["version"], checksum=manifest["head"]["checksum"]),
        events=events,
        replay=reader.document("replay"),
        live_rows=reader.document("live_rows"),
        live_checksums=reader.document("live_checksums"),
        payload_files={
            one.path.removeprefix(PAYLOADS): PayloadFile(one.sha256, one.size) for one in there if one.role == "payload"
        },
        max_payload_bytes=manifest["config"]["max_payload_bytes"],
        projector=reader.document("projector"),
        asks_projector=manifest["config"]["projector"],
        schema=manifest["schema_version"],
    )
    checked.found["manifest"] += guarded("manifest", lambda: check_subject(manifest, evidence))
    for gate in gate_names():
        checked.found[gate] = judge(gate, evidence)
    checked.found["fetch"] = [*unreadable, *checked.found["fetch"]]
    checked.found["report"] = guarded("report", lambda: _check_report(reader.document("report"), checked, evidence))
    return checked


def _events(reader: BundleReader) -> tuple[list[StoredEvent], list[Finding]]:
    events: list[StoredEvent] = []
    findings: list[Finding] = []
    for number, line in enumerate(reader.lines("events"), start=1):
        try:
            events.append(event := read_event_line(line))
            if event_line(event) != line:
                told = f"line {number} of the events is not spelt as evidence is"
                findings.append(Finding(code="event.respelt", message=told, stream_version=event.stream_version))
        except NoetlError as exc:
            told = f"line {number} of the events: {exc.message}"
            findings.append(Finding(code="event.unreadable", message=told, stream_version=number))
    return events, findings


def _made_later(manifest: Any) -> Finding | None:
    version = _version_of(manifest)
    if version <= SCHEMA:
        return None
    told = f"this is evidence of version {version}, and this release reads up to {SCHEMA}: check it with a later one"
    return Finding(code="bundle.later", message=told)


def _version_of(document: Any) -> int:
    version = document.get("schema_version") if type(document) is dict else None
    return version if type(version) is int else 0


def _check_report(report: Any, checked: CheckedBundle, evidence: Evidence) -> list[Finding]:
    """The report says what the files give, which is the verdict."""
    verdict = checked.verdict = evidence.verdict()
    if wrong := evidence.problems("report", report):
        return [Finding(code="report", message=one) for one in wrong]
    again = verdict.to_json()
    if evidence.schema == 1:  # which told no registries
        del again["upcasters"]
    if encode(report["verdict"]) != encode(normalize(again)):
        return [Finding(code="report", message="its verdict is not what the evidence gives")]
    if not report["proved"]:
        return [Finding(code="report", message="it says that nothing was proved")]
    if report["findings"]:
        return [Finding(code="report", message="it says that all was proved, and has findings")]
    return []


def _listed(index: Any) -> list[Artifact]:
    return [] if strict.problems(index, INDEX_SHAPE, "index") else [Artifact(**one) for one in index["artifacts"]]
