"""Checks a lake by itself: every file that counts is there and unchanged, none is beside them, every event once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from noetl_core.canonical import sha256_hex
from noetl_core.errors import NoetlError
from noetl_core.evidence.chain import ChainCheck
from noetl_core.lake.manifest import EVENTS, MANIFESTS, LakeFile, Manifest, pending_path
from noetl_core.ports.lake import LakeFiles, LakeFormat


@dataclass(slots=True)
class LakeReport:
    """What was found; no problems means that the lake is what was exported."""

    batches: int = 0
    files: int = 0
    events: int = 0
    executions: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def found_nothing(self) -> bool:
        """No batch, and no file that one could have counted: this is no lake, or nothing was ever exported to it."""
        return not self.batches and not self.problems


def check_lake(files: LakeFiles, format: LakeFormat) -> LakeReport:  # noqa: A002 - the format of the lake
    """Read all of it, batch by batch; in memory stands one number and one checksum for each execution."""
    report, chains, known = LakeReport(), dict[int, ChainCheck](), set[str]()
    # Before manifests are: a file has its place only after its batch counts, and another export may be at it now.
    placed = files.list(EVENTS)
    paths = files.list(MANIFESTS)
    previous = ""
    for number, path in enumerate(paths, start=1):
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
        report.problems += _check_batch(files, format, manifest, chains, report, last=number == len(paths))
    report.executions = len(chains)
    report.problems += [f"{path}: no batch counts it" for path in placed if path not in known]
    return report


def _check_batch(
    files: LakeFiles,
    format: LakeFormat,  # noqa: A002 - the format of the lake
    manifest: Manifest,
    chains: dict[int, ChainCheck],
    report: LakeReport,
    *,
    last: bool,
) -> Iterator[str]:
    """An execution may have several files in a batch, of different dates or of much data; they come in their order."""
    for file in manifest.files:
        try:
            data = _read_waiting(files, manifest.batch, file) if last else files.read(file.path)
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


def _read_waiting(files: LakeFiles, batch: int, file: LakeFile) -> bytes:
    """A file of the last batch counts, and may wait for its place until an export goes on, or be given it just now."""
    for path in (file.path, pending_path(batch, file.sha256)):
        with suppress(FileNotFoundError):
            return files.read(path)
    return files.read(file.path)
