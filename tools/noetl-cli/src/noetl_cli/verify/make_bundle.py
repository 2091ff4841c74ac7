"""Makes the evidence of one execution: reads everything once, passes it through the gates, writes what was judged."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version as version_of
from typing import Any, Final

from noetl_contracts.clients.find_payloads import FindPayloads
from noetl_core.canonical import JsonObject
from noetl_core.envelope import StoredEvent
from noetl_core.errors import InvalidInput, NotFound, Unavailable
from noetl_core.evidence.bundle import INDEX, STEPS
from noetl_core.evidence.chain import Head
from noetl_core.evidence.documents import SCHEMA, live_checksums_document, live_rows_document, replay_document
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.gates import GATES, Evidence, PayloadFile, judge
from noetl_core.evidence.verdict import Verdict
from noetl_core.evidence.verify_executions import Verified, VerifyExecutions
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead
from noetl_core.replay.event_lines import event_line
from noetl_core.timestamps import format_time

from noetl_cli.connection import Clients
from noetl_cli.verify.bundle_files import BundleWriter

PROJECTOR_SECONDS: Final = 10.0
_BESIDE_THE_BYTES: Final = (
    "event.beyond_head",
    "event.column_differs",
    "event.unreadable",
    "row.shape",
    "stream.differs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    execution_id: int
    max_payload_bytes: int
    wait_seconds: int
    projector: str = ""
    """Address of a projector's operator port, for its summary."""


@dataclass(slots=True, kw_only=True)
class Made:
    """What came out."""

    head: StreamHead
    verdict: Verdict
    found: dict[str, list[Finding]]
    index_sha256: str = ""

    @property
    def findings(self) -> list[Finding]:
        """All of them, each once."""
        return list(dict.fromkeys(one for found in self.found.values() for one in found))


class Steps:
    """What was done, when, for how long, and with which outcome."""

    def __init__(self) -> None:
        self.started_at = datetime.now(UTC)
        self._began = time.monotonic()
        self.done: list[JsonObject] = []
        self.found: dict[str, list[Finding]] = {}

    def now(self) -> datetime:
        """By what has passed since the beginning: the host's clock may be set back while the evidence is made."""
        return self.started_at + timedelta(seconds=time.monotonic() - self._began)

    @contextmanager
    def step(self, name: str) -> Iterator[list[Finding]]:
        """Whatever is put into the list makes the step a failure."""
        started_at, found = self.now(), list[Finding]()
        yield found
        self.found[name] = found
        self.done.append(
            {
                "name": name,
                "started_at": format_time(started_at),
                "duration_ms": (self.now() - started_at) // timedelta(milliseconds=1),
                "return_code": 1 if found else 0,
                "findings": len(found),
            }
        )


@dataclass(slots=True, kw_only=True)
class _Fetched:
    head: StreamHead
    events: list[StoredEvent]
    verified: Verified
    evidence: Evidence
    payloads: list[JsonObject] = field(default_factory=list)


async def make_bundle(clients: Clients, options: Options, writer: BundleWriter) -> Made:
    """All documents, and what is wrong with them; raises `NotFound` if there is no such execution."""
    steps = Steps()
    with steps.step("fetch") as found:
        fetched = await _fetch(clients, options, writer)
        found.extend(judge("fetch", fetched.evidence))
        # What the bytes themselves cannot show, and so no file of the evidence.
        found.extend(one for one in fetched.verified.verdict.findings if one.code in _BESIDE_THE_BYTES)
    _write_documents(fetched, writer, exported_at=steps.now())
    for name in STEPS[1:-1]:
        with steps.step(name) as found:
            if name in GATES:
                found.extend(judge(name, fetched.evidence))
            elif fetched.verified.live is None:
                found.append(Finding(code="projection.missing", message="there are no live rows to export"))
    verdict = fetched.evidence.verdict()
    made = Made(head=fetched.head, verdict=verdict, found=steps.found)
    report: JsonObject = {
        "schema_version": SCHEMA,
        "proved": not made.findings,
        "verdict": verdict.to_json(),
        "findings": [one.to_json() for one in made.findings],
    }
    writer.add_json("report", report)
    with steps.step("artifact_index"):
        roles = {one.role: one.path for one in writer.artifacts if one.role != "payload"}
    writer.add_json("manifest", _manifest(options, fetched.head, steps, {**roles, "manifest": "manifest.json"}))
    made.index_sha256 = writer.finish()
    return made


async def _fetch(clients: Clients, options: Options, writer: BundleWriter) -> _Fetched:
    """Everything that needs a server."""
    head = await clients.evidence.find_stream(None, options.execution_id)
    if head is None:
        raise NotFound("execution", options.execution_id, code="execution.not_found")
    events: list[StoredEvent] = []
    verify = VerifyExecutions(
        clients.events,
        clients.evidence,
        columns=clients.evidence,
        wait_seconds=options.wait_seconds,
        keep_rows=True,
        seen=events.extend,
    )
    (verified,) = await verify([head])
    evidence = Evidence(
        execution_id=head.execution_id,
        head=Head(version=head.version, checksum=head.checksum),
        events=events,
        max_payload_bytes=options.max_payload_bytes,
        asks_projector=bool(options.projector),
    )
    fetched = _Fetched(head=head, events=events, verified=verified, evidence=evidence)
    fetched.payloads = await _payloads(clients, options, verified, evidence, writer)
    if options.projector:
        evidence.projector = await asyncio.to_thread(fetch_summary, options.projector)
    return fetched


def _write_documents(fetched: _Fetched, writer: BundleWriter, *, exported_at: datetime) -> None:
    evidence, head = fetched.evidence, fetched.head
    writer.add("events", b"".join(event_line(event) + b"\n" for event in fetched.events))
    replayed = fetched.verified.check.replayed()
    if replayed is not None:
        evidence.replay = replay_document(replayed, fetched.payloads)
        writer.add_json("replay", evidence.replay)
    live = fetched.verified.live
    if live is not None:
        evidence.live_rows = live_rows_document(
            live.rows,
            tenant_id=head.tenant_id,
            organization_id=head.organization_id,
            execution_id=head.execution_id,
            version=live.version,
            upcasters=live.upcasters or "",
            columns=live.columns,
            shard_count=live.shard_count,
            exported_at=exported_at,
        )
        evidence.live_checksums = live_checksums_document(evidence.live_rows)
        writer.add_json("live_rows", evidence.live_rows)
        writer.add_json("live_checksums", evidence.live_checksums)
    if evidence.projector is not None:
        writer.add_json("projector", evidence.projector)


async def _payloads(
    clients: Clients, options: Options, verified: Verified, evidence: Evidence, writer: BundleWriter
) -> list[JsonObject]:
    """What became of each; those that are not too large come along."""
    replayed = verified.check.replayed()
    if replayed is None:
        return []
    owner = Scope(tenant_id=verified.head.tenant_id, organization_id=verified.head.organization_id)
    find = FindPayloads(clients.payloads, owner=owner, take_up_to=options.max_payload_bytes)
    told: list[JsonObject] = []
    files: dict[str, PayloadFile] = {}
    async for one in find(replayed.payloads):
        if one.data is not None:
            writer.add_payload(one.sha256, one.data)
            files[one.sha256] = PayloadFile(writer.artifacts[-1].sha256, writer.artifacts[-1].size)
        told.append(one.to_json())
    evidence.payload_files = files
    return told


def _manifest(options: Options, head: StreamHead, steps: Steps, roles: dict[str, str]) -> JsonObject:
    return {
        "schema_version": SCHEMA,
        "program": f"noetl-cli {version_of('noetl-cli')}",
        "config": {
            "execution_id": str(options.execution_id),
            "tenant_id": head.tenant_id,
            "organization_id": head.organization_id,
            "live_input": "rows",
            "max_payload_bytes": options.max_payload_bytes,
            "wait_seconds": options.wait_seconds,
            "projector": bool(options.projector),
        },
        "head": {"version": head.version, "checksum": head.checksum, "terminal": head.terminal},
        "started_at": format_time(steps.started_at),
        "ended_at": format_time(steps.now()),
        "steps": [*steps.done],
        "artifacts": {**roles},
        "artifact_index": INDEX,
        "proved": not any(steps.found.values()),
    }


def fetch_summary(address: str) -> Any:
    """The `/summary` of a projector's operator port."""
    if not address.startswith(("http://", "https://")):
        raise InvalidInput(f"a projector's operator port is http://HOST:PORT, not {address!r}")
    url = f"{address.rstrip('/')}/summary"
    try:
        with urllib.request.urlopen(url, timeout=PROJECTOR_SECONDS) as answer:  # noqa: S310 - http only
            return json.loads(answer.read())
    except (urllib.error.URLError, TimeoutError, ValueError) as exc:
        raise Unavailable(f"{url} does not answer with a summary: {exc}") from exc
