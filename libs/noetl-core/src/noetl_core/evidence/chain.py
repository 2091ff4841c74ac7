"""Is a history whole and unchanged? Every event is sealed to its place and to the event before it."""

from __future__ import annotations

from collections.abc import Iterable

from noetl_core.canonical import decode, encode
from noetl_core.envelope import Draft, Envelope, StoredEvent, chain_checksum, check_result_shape
from noetl_core.errors import InvalidInput, NoetlError
from noetl_core.evidence.findings import Finding
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a stream ends, from a source other than its events: what the last of them cannot prove by themselves."""

    version: int
    checksum: str | None = None
    """None: whoever tells of the end does not know it. An empty one is known, and is that of no event."""


class ChainCheck:
    """Takes the events of one stream as they stand, page by page, and remembers nothing but the last one."""

    def __init__(self, execution_id: int, *, deep: bool = True, after: Head | None = None) -> None:
        self._execution_id = execution_id
        self._deep = deep
        """Whether the inside of each event is looked at too; its seal covers it, unless somebody sealed it anew."""
        self._version = after.version if after else 0
        self._checksum = (after.checksum if after else None) or ""
        """Where a history is taken up in its middle, the event before is known from elsewhere."""

    @property
    def version(self) -> int:
        """Of the last event that was taken."""
        return self._version

    @property
    def checksum(self) -> str:
        """Of the same."""
        return self._checksum

    def take(self, events: Iterable[StoredEvent]) -> list[Finding]:
        """What is wrong with these events, and with how they follow the ones before."""
        findings: list[Finding] = []
        for event in events:
            findings += self._take(event)
        return findings

    def end(self, head: Head | None) -> list[Finding]:
        """What is missing at the end."""
        if head is None:
            return []
        if head.version > self._version:
            return [_missing(self._version + 1, head.version)]
        if head.version < self._version:
            return [beyond_head(head.version, self._version)]
        if head.checksum is not None and head.checksum != self._checksum:
            message = f"the last event has checksum {self._checksum}, the stream's head says {head.checksum}"
            return [Finding(code="event.other_than_head", message=message, stream_version=head.version)]
        return []

    def _take(self, event: StoredEvent) -> list[Finding]:
        findings: list[Finding] = []
        expected, version = self._version + 1, event.stream_version
        if version > expected:
            findings.append(_missing(expected, version - 1))
        elif version < expected:
            where = "twice" if version == self._version else f"after version {self._version}"
            findings.append(_about(event, "event.out_of_order", f"version {version} stands {where}"))
        elif event.prev_checksum != self._checksum:
            told = f"it follows {event.prev_checksum or 'nothing'}, the event before it has {self._checksum or 'none'}"
            findings.append(_about(event, "event.not_linked", told))
        findings += self._check_seal(event)
        if version >= expected:
            self._version, self._checksum = version, event.checksum
        return findings

    def _check_seal(self, event: StoredEvent) -> list[Finding]:
        sealed = chain_checksum(
            prev_checksum=event.prev_checksum,
            stream_version=event.stream_version,
            aggregate_version=event.aggregate_version,
            ingest_time=event.ingest_time,
            body=event.body,
        )
        if sealed != event.checksum:
            return [
                _about(event, "event.changed", f"its bytes and place give {sealed}, its checksum is {event.checksum}")
            ]
        return self._check_inside(event) if self._deep else []

    def _check_inside(self, event: StoredEvent) -> list[Finding]:
        try:
            return self._found_inside(event)
        except Exception as exc:
            # Whatever it is: a field may hold anything in an event that somebody sealed anew, and has to be told of.
            reason = exc.message if isinstance(exc, NoetlError) else f"{type(exc).__name__}: {exc}"
            return [_about(event, "event.unreadable", reason)]

    def _found_inside(self, event: StoredEvent) -> list[Finding]:
        envelope = event.envelope()
        canonical = encode(decode(event.body)) == event.body
        content = _content_digest(envelope)
        findings: list[Finding] = []
        if not canonical:
            findings.append(_about(event, "event.not_canonical", "its bytes are not canonical JSON"))
        if envelope.execution_id != self._execution_id:
            told = f"it belongs to execution {envelope.execution_id}"
            findings.append(_about(event, "event.of_another_stream", told))
        if content != envelope.content_sha256:
            told = f"its content gives {content}, it says {envelope.content_sha256}"
            findings.append(_about(event, "event.content_differs", told))
        if not envelope.idempotency_key:
            findings.append(_about(event, "event.without_key", "it has no idempotency key"))
        try:
            check_result_shape(envelope.result or {"status": "ok"})
        except InvalidInput as exc:
            findings.append(_about(event, "event.result_refused", exc.message))
        return findings


def check_chain(execution_id: int, events: Iterable[StoredEvent], *, head: Head | None = None) -> list[Finding]:
    """What is wrong with a whole history; nothing if it is what was written."""
    check = ChainCheck(execution_id)
    return [*check.take(events), *check.end(head)]


def _content_digest(envelope: Envelope) -> str:
    """What makes the event the fact that it is, digested as it was before it had a place."""
    draft = Draft(
        event_type=envelope.event_type,
        idempotency_key=envelope.idempotency_key,
        schema_version=envelope.schema_version,
        aggregate_type=envelope.aggregate_type,
        aggregate_id=envelope.aggregate_id,
        node_name=envelope.node_name,
        result=envelope.result,
        payload_ref=envelope.payload_ref,
        meta=envelope.meta,
    )
    return draft.content_sha256()


def beyond_head(version: int, last: int) -> Finding:
    """There are events where the stream has ended."""
    message = f"the stream ends at version {version}, and events up to {last} are here"
    return Finding(code="event.beyond_head", message=message, stream_version=version + 1)


def _missing(first: int, last: int) -> Finding:
    which = f"event {first} is" if first == last else f"events {first} to {last} are"
    return Finding(code="event.missing", message=f"{which} missing", stream_version=first)


def _about(event: StoredEvent, code: str, told: str) -> Finding:
    event_id, event_type = "", ""
    try:
        envelope = event.envelope()
        event_id, event_type = str(envelope.event_id), envelope.event_type
    except NoetlError:
        pass  # its version is all that can be said of it
    name = f"event {event.stream_version}" + (f" ({event_type}, {event_id})" if event_id else "")
    return Finding(
        code=code,
        message=f"{name}: {told}",
        stream_version=event.stream_version,
        event_id=event_id,
        event_type=event_type,
    )
