"""A bundle of evidence that can be moved: a manifest of what was done, and an index of every file by its digest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from noetl_core.canonical import JsonObject, sha256_hex
from noetl_core.evidence import strict
from noetl_core.evidence.documents import READABLE, SCHEMA
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.gates import GATES, Evidence
from noetl_core.timestamps import parse_time

INDEX: Final = "index.json"
FILES: Final[Mapping[str, str]] = {
    "manifest": "manifest.json",
    "events": "events.jsonl",
    "replay": "replay.json",
    "live_rows": "live-rows.json",
    "live_checksums": "live-checksums.json",
    "report": "report.json",
    "projector": "projector-summary.json",
}
"""Where each role stands; payloads are many, below a directory of their own."""
PAYLOAD: Final = "payload"
PAYLOADS: Final = "payloads/"
STEPS: Final = (
    "fetch",
    "state_integrity",
    "locator",
    "live_rows_export",
    "live_rows_integrity",
    "live_checksums",
    "projection_parity",
    "payload_resolution",
    "projector_summary",
    "artifact_index",
)
"""In this order; the index is last, so that it digests the manifest that tells of it."""

_ROLES: Final = (*FILES, PAYLOAD)
MANIFEST_SHAPE: Final = strict.fields(
    schema_version=strict.only(*READABLE),
    program=strict.text,
    config=strict.fields(
        execution_id=strict.digits,
        tenant_id=strict.text,
        organization_id=strict.text,
        live_input=strict.only("rows"),
        max_payload_bytes=strict.count,
        wait_seconds=strict.count,
        projector=strict.boolean,
    ),
    head=strict.fields(version=strict.count, checksum=strict.sha256, terminal=strict.boolean),
    started_at=strict.time,
    ended_at=strict.time,
    steps=strict.listing(
        strict.fields(
            name=strict.only(*STEPS),
            started_at=strict.time,
            duration_ms=strict.count,
            return_code=strict.only(0, 1),
            findings=strict.count,
        )
    ),
    artifacts=strict.one_object,
    artifact_index=strict.only(INDEX),
    proved=strict.boolean,
)
INDEX_SHAPE: Final = strict.fields(
    schema_version=strict.only(*READABLE),
    path_base=strict.only("index"),
    manifest=strict.only(FILES["manifest"]),
    artifacts=strict.listing(
        strict.fields(role=strict.only(*_ROLES), path=strict.text, size=strict.count, sha256=strict.sha256)
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file of the bundle."""

    role: str
    path: str
    size: int
    sha256: str

    def to_json(self) -> JsonObject:
        """As the index has it."""
        return {"role": self.role, "path": self.path, "size": self.size, "sha256": self.sha256}


def artifact(role: str, path: str, data: bytes) -> Artifact:
    """What the index says of these bytes."""
    return Artifact(role=role, path=path, size=len(data), sha256=sha256_hex(data))


def index_document(artifacts: Iterable[Artifact]) -> JsonObject:
    """Every file but the index itself, by paths from where the index is."""
    return {
        "schema_version": SCHEMA,
        "path_base": "index",
        "manifest": FILES["manifest"],
        "artifacts": [one.to_json() for one in sorted(artifacts, key=lambda one: one.path)],
    }


def check_index(index: Any, found: Sequence[Artifact], others: Iterable[str] = ()) -> list[Finding]:
    """The index has its shape and its roles, and says of every file what it is; `found` is what is there, by path.

    `others` are paths of what is there and no file that can be read: nothing of it is looked at.
    """
    if wrong := strict.problems(index, INDEX_SHAPE, "index"):
        return [_about("index", one) for one in wrong]
    findings: list[Finding] = []
    listed = [Artifact(**one) for one in index["artifacts"]]
    by_path = {one.path: one for one in listed}
    if len(by_path) != len(listed):
        findings.append(_about("index", "a path is listed twice"))
    for role in ("manifest", "replay", "report", "events"):
        if (number := sum(1 for one in listed if one.role == role)) != 1:
            findings.append(_about("index.roles", f"a bundle has one {role}, this one has {number}"))
    pair = {one.role for one in listed} & {"live_rows", "live_checksums"}
    if len(pair) != 2:
        findings.append(_about("index.roles", "live rows and live checksums come together"))
    for one in listed:
        expected = f"{PAYLOADS}{one.sha256}" if one.role == PAYLOAD else FILES[one.role]
        if one.path != expected:
            findings.append(_about("index.path", f"{one.role} stands at {expected}, not at {one.path}"))
    there = {one.path: one for one in found}
    for path, wanted in by_path.items():
        actual = there.get(path)
        if actual is None:
            findings.append(_about("bundle.missing", f"{path} is missing"))
        elif (actual.size, actual.sha256) != (wanted.size, wanted.sha256):
            told = f"{path} has {actual.size} bytes with digest {actual.sha256}, not {wanted.size} with {wanted.sha256}"
            findings.append(_about("bundle.changed", told))
    findings += [_about("bundle.unlisted", f"{path} is in no index") for path in sorted(there.keys() - by_path.keys())]
    findings += [
        _about("bundle.unlisted", f"{path} is in no index, and is no file that can be read")
        for path in others
        if path not in by_path
    ]
    return findings


def check_manifest(manifest: Any, *, roles: Mapping[str, str], execution_id: int, index_version: int) -> list[Finding]:
    """The manifest has its shape, all its steps in their order and successful, and names the files of the index."""
    if wrong := strict.problems(manifest, MANIFEST_SHAPE, "manifest"):
        return [_about("manifest", one) for one in wrong]
    findings: list[Finding] = []
    if index_version != manifest["schema_version"]:
        told = f"it is of version {manifest['schema_version']}, and the index of version {index_version}"
        findings.append(_about("manifest", told))
    if manifest["config"]["execution_id"] != str(execution_id):
        findings.append(_about("manifest", "its execution is another than that of the events"))
    if [step["name"] for step in manifest["steps"]] != list(STEPS):
        findings.append(_about("manifest.steps", f"its steps are not {', '.join(STEPS)}"))
    times = [manifest["started_at"], *(step["started_at"] for step in manifest["steps"]), manifest["ended_at"]]
    if times != sorted(times):
        findings.append(_about("manifest.steps", "its times go back"))
    for step, ended in zip(manifest["steps"], times[2:], strict=True):
        between = (parse_time(ended) - parse_time(step["started_at"])) // timedelta(milliseconds=1)
        if between < step["duration_ms"]:
            told = f"{step['name']} took {step['duration_ms']} ms, and {between} ms later it was over"
            findings.append(_about("manifest.steps", told))
    for step in manifest["steps"]:
        if step["return_code"] != 0 or step["findings"]:
            findings.append(_about("manifest.failed", f"{step['name']} failed when the evidence was made"))
    if manifest["artifacts"] != dict(roles):
        findings.append(_about("manifest.artifacts", "it names other files than the index"))
    if manifest["config"]["projector"] != ("projector" in roles):
        findings.append(_about("manifest.artifacts", "a projector was asked if, and only if, its summary came along"))
    if manifest["proved"] != all(step["return_code"] == 0 for step in manifest["steps"]):
        findings.append(_about("manifest", "its outcome is not that of its steps"))
    return findings


def check_subject(manifest: Any, evidence: Evidence) -> list[Finding]:
    """The manifest says of whom and when what the documents beside it say; it has its shape."""
    findings: list[Finding] = []
    told = (manifest["config"]["tenant_id"], manifest["config"]["organization_id"])
    if (owner := evidence.owner()) is not None:
        if told != owner:
            findings.append(_about("manifest", f"it is of {told!r}, the execution is of {owner!r}"))
        if manifest["head"]["terminal"] != evidence.history().had_ended:
            findings.append(_about("manifest", "whether the execution had ended is not what the events say"))
    live: Any = evidence.live_rows
    if live is not None and not evidence.problems("live_rows", live):
        times = [manifest["started_at"], live["exported_at"], manifest["ended_at"]]
        if times != sorted(times):
            findings.append(_about("manifest", f"live rows of {live['exported_at']} were not exported on the way"))
    return findings


def gate_names() -> tuple[str, ...]:
    """Those of the steps that are judged from documents, in order."""
    return tuple(name for name in STEPS if name in GATES)


def _about(code: str, message: str) -> Finding:
    return Finding(code=code, message=message)
