"""Checks a lake by itself: every file that counts is there and unchanged, none is beside them, every event once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from noetl_core.canonical import sha256_hex
from noetl_core.errors import NoetlError
from noetl_core.evidence.chain import ChainCheck
from noetl_core.lake.manifest import EVENTS, MANIFESTS, Manifest
from noetl_core.ports.lake import LakeFiles, LakeFormat


@dataclass(slots=True)
class LakeReport:
    """What was found; no problems means that the lake is what was exported."""

    batches: int = 0
    files: int = 0
    events: int = 0
    executions: int = 0
    problems: list[str] = field(default_factory=list)


def check_lake(files: LakeFiles, format: LakeFormat) -> LakeReport:  # noqa: A002 - the format of the lake
    """Read all of it, batch by batch; in memory stands one number and one checksum for each execution."""
    report, chains, known = LakeReport(), dict[int, ChainCheck](), set[str]()
    previous = ""
    for number, path in enumerate(files.list(MANIFESTS), start=1):
        data = files.read(path)
        try:
            manifest = Manifest.from_bytes(data)
        except NoetlError as exc:
            report.problems.append(f"{path}: {exc.message}")
            continue
        if manifest.batch != number or manifest.previous_sha256 != previous:
            report.problems.append(f"{path}: it does not follow the batch before it")
        previous = sha256_hex(data)
        report.batches += 1
        known.update(file.path for file in manifest.files)
        report.problems += _check_batch(files, format, manifest, chains, report)
    report.executions = len(chains)
    report.problems += [f"{path}: no batch counts it" for path in files.list(EVENTS) if path not in known]
    return report


def _check_batch(
    files: LakeFiles,
    format: LakeFormat,  # noqa: A002 - the format of the lake
    manifest: Manifest,
    chains: dict[int, ChainCheck],
    report: LakeReport,
) -> Iterator[str]:
    """An execution may have several files in a batch, of different dates or of much data; they come in their order."""
    for file in manifest.files:
        try:
            data = files.read(file.path)
        except FileNotFoundError:
            yield f"{file.path}: it is missing"
            continue
        if sha256_hex(data) != file.sha256:
            yield f"{file.path}: its bytes are not those that were exported"
            continue
        events = format.decode_events(data)
        report.files += 1
        report.events += len(events)
        for event in events:
            execution_id = event.envelope().execution_id
            chain = chains.setdefault(execution_id, ChainCheck(execution_id, deep=False))
            for finding in chain.take([event]):
                yield f"{file.path}: execution {execution_id}, {finding.message}"
