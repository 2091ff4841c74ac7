"""What one batch of an export has written; a batch counts when its manifest is there, and never before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date as calendar_date
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, unquote

from noetl_core.canonical import JsonObject, decode, encode, sha256_hex
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.timestamps import format_time, parse_time

SCHEMA_VERSION: Final = 1
MANIFESTS: Final = "_lake/batches"
PENDING: Final = "_lake/pending"
POSITIONS: Final = "_lake/positions"
EVENTS: Final = "events"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME: Final = 255 - len("tenant_id=")
"""What file systems leave of a name, in bytes; many letters take six of them or more when they are quoted."""
_LONG_TENANT: Final = re.compile(r"sha256\+[0-9a-f]{64}")
_EVENT_PATH: Final = re.compile(rf"{EVENTS}/tenant_id=([^/]+)/date=([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """A file of events, and what proves it."""

    path: str
    rows: int
    bytes: int
    sha256: str

    def to_json(self) -> JsonObject:
        """As manifests hold it."""
        return {"path": self.path, "rows": self.rows, "bytes": self.bytes, "sha256": self.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far an execution has come in a lake."""

    version: int
    """Of its last event there."""
    checksum: str = ""
    """Of the same, by which the next one is tied to it; empty where an earlier release exported it, and did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One batch: its files, how far each execution has come with it, and where the next run begins to look."""

    batch: int
    scope: str
    """Whose events these are; a lake is of one tenant and organization, or of all of them."""
    files: tuple[LakeFile, ...]
    positions: Mapping[int, Position] = field(default_factory=dict)
    """Up to where events of an execution are in the lake, of those that this batch moved."""
    positions_file: LakeFile | None = None
    """The same of all executions so far, now and then, so that nobody has to read every manifest."""
    scanned_to: datetime | None = None
    """Every head that had moved before this time, and could be seen then, is in the lake; None within a run."""
    compared_at: datetime | None = None
    """When all heads were looked at last, whenever they moved; None within a run, and where nobody said."""
    log_branch: str = ""
    """Of the log that the events are from; empty if nobody said."""
    previous_sha256: str = ""

    @property
    def path(self) -> str:
        """Where it stands."""
        return manifest_path(self.batch)

    @property
    def all_files(self) -> tuple[LakeFile, ...]:
        """Everything that was written with it."""
        return (*self.files, self.positions_file) if self.positions_file else self.files

    def to_bytes(self) -> bytes:
        """Canonical bytes."""
        return encode(
            {
                "schema_version": SCHEMA_VERSION,
                "batch": self.batch,
                "scope": self.scope,
                "files": [one.to_json() for one in self.files],
                "positions": {str(key): one.version for key, one in self.positions.items()},
                "checksums": {str(key): one.checksum for key, one in self.positions.items() if one.checksum},
                "positions_file": self.positions_file.to_json() if self.positions_file else None,
                "log_branch": self.log_branch,
                "scanned_to": format_time(self.scanned_to) if self.scanned_to else None,
                "compared_at": format_time(self.compared_at) if self.compared_at else None,
                "previous_sha256": self.previous_sha256,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read one; raises `Corrupt` for anything else."""
        try:
            fields: Any = decode(data)
            if fields["schema_version"] != SCHEMA_VERSION:
                raise Corrupt(f"a manifest of version {fields['schema_version']!r} is not known to this release")
            manifest = cls(
                batch=_number(fields["batch"], least=1),
                scope=_text(fields["scope"]),
                files=tuple(_file(one) for one in _list(fields["files"])),
                positions=_positions(fields["positions"], fields.get("checksums", {})),
                positions_file=_file(fields["positions_file"]) if fields["positions_file"] is not None else None,
                scanned_to=parse_time(fields["scanned_to"]) if fields["scanned_to"] is not None else None,
                compared_at=parse_time(fields["compared_at"]) if fields.get("compared_at") is not None else None,
                log_branch=_text(fields.get("log_branch", "")),
                previous_sha256=_digest(fields["previous_sha256"]) if fields["previous_sha256"] != "" else "",
            )
        except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as exc:
            raise Corrupt(f"the manifest of a batch cannot be read: {exc!r}") from exc
        manifest._check_paths()
        return manifest

    def _check_paths(self) -> None:
        """Whoever resumes gives files the places that stand here: none of them may be outside of the lake."""
        for file in self.files:
            if not is_event_path(file.path, self.batch, file.sha256):
                raise Corrupt(f"batch {self.batch} has {file.path!r}, which is no place of a file of events")
        if (kept := self.positions_file) is not None and kept.path != positions_path(self.batch, kept.sha256):
            raise Corrupt(f"batch {self.batch} has {kept.path!r}, which is not where its positions stand")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a lake has come."""

    scope: str
    next_batch: int = 1
    positions: Mapping[int, Position] = field(default_factory=dict)
    scanned_to: datetime | None = None
    compared_at: datetime | None = None
    log_branch: str = ""
    """That the last batch was from."""
    last_sha256: str = ""


def follow(progress: Progress, data: bytes, *, known: Mapping[int, Position] | None = None) -> Progress:
    """Progress after one more manifest; `known` are the positions of its file, if it has one and they were read."""
    manifest = Manifest.from_bytes(data)
    if manifest.scope != progress.scope:
        raise Corrupt(f"this lake is of {manifest.scope!r}, not of {progress.scope!r}; begin another one for these")
    if known is None and manifest.previous_sha256 != progress.last_sha256:
        raise Corrupt(f"batch {manifest.batch} does not follow the one before it: a manifest was changed or lost")
    positions = dict(known) if known is not None else {**progress.positions, **manifest.positions}
    # What was scanned on another branch was told by another server's clock: within the first run on a new one nobody
    # knows yet what has moved since.
    scanned_before = progress.scanned_to if manifest.log_branch == progress.log_branch else None
    return Progress(
        scope=progress.scope,
        next_batch=manifest.batch + 1,
        positions=positions,
        scanned_to=manifest.scanned_to or scanned_before,
        compared_at=manifest.compared_at or progress.compared_at,
        log_branch=manifest.log_branch,
        last_sha256=sha256_hex(data),
    )


def manifest_path(batch: int) -> str:
    """Where the manifest of a batch stands."""
    return f"{MANIFESTS}/{batch:012d}.json"


def batch_of(path: str) -> int:
    """The batch that a file belongs to, from its name; 0 if it belongs to none."""
    name = path.rpartition("/")[2]
    digits = name.removeprefix("batch-").partition("-")[0].partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


def pending_path(batch: int, sha256: str) -> str:
    """Where a file waits until its batch counts; its name says what is in it, so that two writers do no harm."""
    return f"{PENDING}/batch-{batch:012d}-{sha256}.parquet"


def event_path(batch: int, sha256: str, *, tenant_id: str, date: str) -> str:
    """Where a file of events stands, by tenant and by the date on which the log took them."""
    return _event_path(batch, sha256, tenant=_tenant_name(tenant_id), date=date)


def _event_path(batch: int, sha256: str, *, tenant: str, date: str) -> str:
    return f"{EVENTS}/tenant_id={tenant}/date={date}/batch-{batch:012d}-{sha256}.parquet"


def _tenant_name(tenant_id: str) -> str:
    """As a part of a path; a digest of what is too long for one, which no quoted name looks like."""
    quoted = quote(tenant_id, safe="")
    return quoted if len(quoted) <= _LONGEST_NAME else f"sha256+{sha256_hex(tenant_id.encode())}"


def is_event_path(path: str, batch: int, sha256: str) -> bool:
    """Whether `event_path` makes exactly this of a file's batch and digest, with some tenant and date."""
    found = _EVENT_PATH.fullmatch(path)
    if found is None:
        return False
    tenant, date = found[1], found[2]
    try:
        calendar_date.fromisoformat(date)
    except ValueError:
        return False
    # Quoted whatever its length: where names may be longer, earlier releases wrote them.
    if tenant != quote(unquote(tenant), safe="") and _LONG_TENANT.fullmatch(tenant) is None:
        return False
    return path == _event_path(batch, sha256, tenant=tenant, date=date)


def positions_path(batch: int, sha256: str) -> str:
    """Where the positions of all executions after a batch stand."""
    return f"{POSITIONS}/batch-{batch:012d}-{sha256}.parquet"


def never_counted(pending: Iterable[str], last: Manifest) -> list[str]:
    """Files of batches that others have written since: nobody will ever refer to them."""
    wanted = {pending_path(last.batch, one.sha256) for one in last.all_files}
    return sorted(path for path in pending if batch_of(path) <= last.batch and path not in wanted)


def _file(fields: Any) -> LakeFile:
    file = LakeFile(**fields)
    _text(file.path)
    _number(file.rows)
    _number(file.bytes)
    _digest(file.sha256)
    return file


def _positions(versions: Any, checksums: Any) -> dict[int, Position]:
    """Releases that did not tie batches to each other wrote no checksums."""
    told = {key: _digest(one) for key, one in checksums.items()}
    return {
        int(key): Position(version=_number(version, least=1), checksum=told.get(key, ""))
        for key, version in versions.items()
    }


def _number(value: Any, *, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is no number from {least} on")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _digest(value: Any) -> str:
    if _DIGEST.fullmatch(_text(value)) is None:
        raise ValueError(f"{value!r} is no digest")
    return _text(value)
