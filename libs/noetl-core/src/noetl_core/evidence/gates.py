"""The gates that evidence passes, by name; the same functions judge it where it is made and wherever it is moved to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from noetl_core.canonical import MAX_SAFE_INTEGER, JsonObject, encode, sha256_hex
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt, LocatorInvalid, NoetlError
from noetl_core.evidence import strict
from noetl_core.evidence.chain import Head
from noetl_core.evidence.documents import (
    RESOLVED,
    SCHEMA,
    SHAPES,
    columns_of,
    live_checksums_document,
    payload_summary,
    replay_document,
    rows_of,
)
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.live import LiveState
from noetl_core.evidence.verdict import HistoryCheck, Verdict
from noetl_core.locator import is_payload, parse
from noetl_core.ports.live_rows import StoredRow
from noetl_core.replay.payload_uses import PayloadUses
from noetl_core.surfaces.checksums import in_order
from noetl_core.surfaces.shapes import Surface, check_row, key_of

_GIVEN_UP: Final = strict.listing(strict.having("execution_id", strict.digits))


class PayloadFile(NamedTuple):
    """Bytes that came along under a digest's name, as they are."""

    sha256: str
    size: int


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What is judged: events, documents, and what the payloads that came along are."""

    execution_id: int
    head: Head
    """Where the log said that the stream ends."""
    events: Sequence[StoredEvent]
    replay: JsonObject | None = None
    live_rows: JsonObject | None = None
    live_checksums: JsonObject | None = None
    payload_files: Mapping[str, PayloadFile] = field(default_factory=dict)
    """By the digest whose name they have."""
    max_payload_bytes: int = 0
    """Payloads up to this size were to come along."""
    projector: JsonObject | None = None
    asks_projector: bool = False
    """Whether a projector was asked, so that its summary has to be there."""
    schema: int = SCHEMA
    """The version of the bundle, which all its documents have."""
    _check: HistoryCheck | None = None

    def history(self) -> HistoryCheck:
        """The events, checked and folded once."""
        if self._check is None:
            check = HistoryCheck(self.execution_id)
            # As they stand: whoever sorts them cannot say that they were not in order.
            later = (place for place, one in enumerate(self.events) if one.stream_version > self.head.version)
            up_to_head = next(later, len(self.events))
            check.take(self.events[:up_to_head])
            check.end(self.head)
            check.take(self.events[up_to_head:])
            self._check = check
        return self._check

    def verdict(self) -> Verdict:
        """What the history says, beside what is live."""
        return self.history().against(self._live())

    def owner(self) -> tuple[str, str] | None:
        """Tenant and organization by the history; None unless it is whole."""
        replayed = self.history().replayed()
        if replayed is None:
            return None
        return replayed.state.execution.tenant_id, replayed.state.execution.organization_id

    def problems(self, role: str, document: Any) -> list[str]:
        """Where a document does not have its shape."""
        return strict.problems(document, SHAPES[self.schema][role], role)

    def _live(self) -> LiveState | None:
        document: Any = self.live_rows
        if document is None or self.problems("live_rows", document):
            return None
        version, upcasters = document["scope"]["stream_version"], document.get("upcasters")
        columns, shard_count = columns_of(document.get("columns"))
        live = LiveState(
            self.execution_id,
            version,
            keep_rows=True,
            upcasters=upcasters,
            columns=columns,
            shard_count=shard_count,
        )
        try:
            rows = rows_of(document["rows"])
            for surface in Surface:
                for key in in_order(rows[surface]):
                    row = dict(rows[surface][key])
                    live.add(StoredRow(execution_id=self.execution_id, surface=surface, key=key, data=encode(row)))
        except (KeyError, TypeError, NoetlError):
            return None
        return live


Gate = Callable[[Evidence], list[Finding]]


def fetch(evidence: Evidence) -> list[Finding]:
    """The history is whole and unchanged, up to the head and beyond."""
    findings = list(evidence.history().alone().findings)
    for event in evidence.events:
        if abs(event.aggregate_version) > MAX_SAFE_INTEGER:
            version = event.stream_version
            told = f"event {version}: {event.aggregate_version} is no version that JSON has a number for"
            findings.append(Finding(code="event.not_canonical", message=told, stream_version=version))
    return findings


def state_integrity(evidence: Evidence) -> list[Finding]:
    """The replayed state has its shape, and is what these very events give."""
    if evidence.replay is None:
        return [_about("replay", "there is no replayed state")]
    if wrong := evidence.problems("replay", evidence.replay):
        return [_about("replay", one) for one in wrong]
    replayed = evidence.history().replayed()
    if replayed is None:
        return [_about("replay", "its history is not whole, so nothing follows from it")]
    payloads: Any = evidence.replay["payloads"]
    again = replay_document(replayed, payloads, schema=evidence.schema)
    findings: list[Finding] = []
    if (made_with := evidence.replay["upcasters"]) != replayed.upcasters:
        told = f"it was folded with the registry {made_with}, this release reads events with {replayed.upcasters}"
        findings.append(_about("replay.other_registry", f"{told}: judge it with the release that made it"))
    findings += [
        _about("replay", f"{name} is not what the events give")
        for name in again
        if name != "upcasters" and encode(again[name]) != encode(evidence.replay[name])
    ]
    return findings


def locator(evidence: Evidence) -> list[Finding]:
    """Addresses of payloads are spelt in the one way, fit their digests, and are of the execution's organization."""
    document: Any = evidence.replay or {}
    findings: list[Finding] = []
    for one in _payloads(document):
        uri, digest = str(one["uri"]), str(one["sha256"])
        try:
            address = parse(uri)
            own = dict(address.pairs())
            fits = is_payload(address, sha256=digest) and str(address) == uri
            whose = own.get("tenant") == (document["tenant_id"],) and own.get("org") == (document["organization_id"],)
        except LocatorInvalid as exc:
            findings.append(_about("payload.locator", exc.message))
            continue
        if not fits or not whose:
            findings.append(_about("payload.locator", f"{uri} is not the address of {digest} of this organization"))
    return findings


def live_rows_integrity(evidence: Evidence) -> list[Finding]:
    """Exported rows have their shapes, their order, their numbers and their checksum."""
    document: Any = evidence.live_rows
    if document is None:
        return [_about("live_rows", "there are no live rows")]
    if wrong := evidence.problems("live_rows", document):
        return [_about("live_rows", one) for one in wrong]
    findings: list[Finding] = []
    if document["scope"]["execution_id"] != str(evidence.execution_id):
        findings.append(_about("live_rows", f"they are of execution {document['scope']['execution_id']}"))
    told = (document["scope"]["tenant_id"], document["scope"]["organization_id"])
    if (owner := evidence.owner()) is not None and told != owner:
        findings.append(_about("live_rows", f"they are of {told!r}, the execution is of {owner!r}"))
    if sha256_hex(encode(document["rows"])) != document["rows_checksum"]:
        findings.append(_about("live_rows", "rows_checksum is not that of the rows"))
    for surface in Surface:
        rows = document["rows"][surface]
        if document["row_counts"][surface] != len(rows):
            findings.append(_about("live_rows", f"row_counts of {surface} is not the number of rows", surface))
        keys: list[str] = []
        for row in rows:
            try:
                check_row(surface, row)
                keys.append(key_of(surface, row))
            except Corrupt as exc:
                findings.append(_about("row.shape", exc.message, surface))
        if keys != in_order(set(keys)):
            findings.append(_about("live_rows", f"rows of {surface} are not in order, each once", surface))
    return findings


def live_checksums(evidence: Evidence) -> list[Finding]:
    """The checksums of live rows are those of the exported rows."""
    document = evidence.live_checksums
    if document is None:
        return [_about("live_checksums", "there are no live checksums")]
    if wrong := evidence.problems("live_checksums", document):
        return [_about("live_checksums", one) for one in wrong]
    if evidence.live_rows is None or live_rows_integrity(evidence):
        return [_about("live_checksums", "there are no whole rows that they could be of")]
    again = live_checksums_document(evidence.live_rows)
    return [
        _about("live_checksums", f"{name} is not what the live rows give")
        for name in again
        if encode(again[name]) != encode(document[name])
    ]


def projection_parity(evidence: Evidence) -> list[Finding]:
    """What is live is what the log says, surface by surface."""
    found = evidence.verdict().findings
    return [one for one in found if one.code.startswith(("parity.", "projection."))]


def payload_resolution(evidence: Evidence) -> list[Finding]:
    """Every payload that the history refers to is there and right; those that came along are looked at again."""
    document: Any = evidence.replay or {}
    told = _payloads(document)
    replayed = evidence.history().replayed()
    findings = _against_history(told, replayed.payloads, evidence.schema) if replayed is not None else []
    for one in told:
        if one["status"] not in RESOLVED:
            message = f"payload {one['sha256']} ({one['uri']}) is {one['status']}"
            findings.append(_about(f"payload.{one['status']}", message))
        findings += _came_along(one, evidence)
    included = {str(one["sha256"]) for one in told if one["included"]}
    findings += [
        _about("payload.foreign", f"bytes came along as {one}, which nothing says of it")
        for one in sorted(evidence.payload_files.keys() - included)
    ]
    if document and document.get("payload_summary") != payload_summary(told):
        findings.append(_about("payload.summary", "the summary of payloads is not that of the payloads"))
    return findings


def _against_history(told: Sequence[Mapping[str, Any]], uses: PayloadUses, schema: int) -> list[Finding]:
    """The list is that of the payloads that events refer to, as they refer to them."""
    # Earlier versions listed a digest once, at the first address that some event named.
    by, known = ("uri", uses.by_address()) if schema > 2 else ("sha256", uses.by_digest())
    listed, expected = [str(one[by]) for one in told], list(known)
    findings = [
        _about("payload.unlisted", f"nothing is said of payload {one}") for one in sorted({*expected} - {*listed})
    ]
    findings += [_about("payload.foreign", f"no event refers to {one}") for one in sorted({*listed} - {*expected})]
    if not findings and listed != expected:
        findings.append(_about("payload.order", f"payloads are not listed in the order of {by}, each once"))
    for one in told:
        if (use := known.get(str(one[by]))) is None:
            continue
        digest = use.sha256
        fields: dict[str, str | int] = {
            "sha256": use.sha256,
            "uri": use.uri,
            "media_type": use.media_type,
            "uses": use.uses,
        }
        if schema > 1 and use.bytes and one["status"] in RESOLVED and not one["included"]:
            # Nothing else tells its size; of one that came along its bytes do, and anybody's event may name another.
            # The first version did not compare it.
            fields["stored_bytes"] = use.bytes
        findings += [
            _about("payload.differs", f"{name} of payload {digest} is {one[name]!r}, events say {value!r}")
            for name, value in fields.items()
            if one[name] != value
        ]
    return findings


def _came_along(one: Mapping[str, Any], evidence: Evidence) -> list[Finding]:
    """Whether its bytes are there if they were to come along, and are right."""
    digest, size = str(one["sha256"]), one["stored_bytes"]
    if one["included"] != (one["status"] in RESOLVED and size <= evidence.max_payload_bytes):
        limit = f"payloads of up to {evidence.max_payload_bytes} bytes that are there come along, and no others"
        return [_about("payload.included", f"payload {digest} of {size} bytes is {one['status']}: {limit}")]
    if not one["included"]:
        return []
    came = evidence.payload_files.get(digest)
    if came is None:
        return [_about("payload.corrupt", f"payload {digest} was to come along and did not")]
    if came.sha256 != digest:
        return [_about("payload.corrupt", f"payload {digest} has bytes with digest {came.sha256}")]
    if one["status"] != "verified" or came.size != size:
        told = f"it is said to be {one['status']}, with {size}"
        return [_about("payload.differs", f"payload {digest} came along with {came.size} bytes, and {told}")]
    return []


def projector_summary(evidence: Evidence) -> list[Finding]:
    """No projector has given the execution up; where none was asked there is nothing to say."""
    document: Any = evidence.projector
    if not evidence.asks_projector:
        return [] if document is None else [_about("projector", "there is a summary, and no projector was asked")]
    if document is None:
        return [_about("projector", "a projector was asked, and there is no summary that can be read")]
    named = document.get("quarantined") if type(document) is dict else None
    count = document.get("quarantined_count") if type(document) is dict else None
    if type(named) is not list or type(count) is not int:
        return [_about("projector", "this is not the summary of a projector")]
    if wrong := strict.problems(named, _GIVEN_UP, "quarantined"):
        return [_about("projector", one) for one in wrong]
    given_up = {one["execution_id"] for one in named}
    if str(evidence.execution_id) in given_up:
        return [_about("projector.quarantined", "a projector has given the execution up")]
    if count != len(given_up):  # A summary names only so many: the execution may be one of the others.
        told = f"a projector has given {count} executions up and names {len(given_up)}: this may be one of the others"
        return [_about("projector.quarantined", told)]
    return []


GATES: Final[Mapping[str, Gate]] = {
    "fetch": fetch,
    "state_integrity": state_integrity,
    "locator": locator,
    "live_rows_integrity": live_rows_integrity,
    "live_checksums": live_checksums,
    "projection_parity": projection_parity,
    "payload_resolution": payload_resolution,
    "projector_summary": projector_summary,
}


def judge(gate: str, evidence: Evidence) -> list[Finding]:
    """What one gate finds."""
    return guarded(gate, lambda: GATES[gate](evidence))


def guarded(code: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """What a check finds; whatever else goes wrong in it is a finding too, since documents are anybody's."""
    try:
        return check()
    except (NoetlError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as exc:
        return [_about(code, f"the evidence cannot be judged: {type(exc).__name__}: {exc}")]


def _payloads(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = document.get("payloads")
    return [one for one in found if type(one) is dict] if type(found) is list else []


def _about(code: str, message: str, surface: str = "") -> Finding:
    return Finding(code=code, message=message, surface=str(surface))
