"""What callers ask to be appended, and what the log is known to hold when that is decided."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from noetl_core.envelope import EXECUTION_AGGREGATE, Draft, StoredEvent, StreamSpelling, check_result_shape
from noetl_core.errors import InvalidInput, NoetlError
from noetl_core.events import is_terminal
from noetl_core.sharding import shard_of
from noetl_core.values import dataclass, new_tuple, replace

END_KEY = "execution/end"
"""All terminal events of an execution share this key, so that exactly one of them can win."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The right to write for one shard in one role, good for one epoch."""

    role: str
    shard: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A wake-up that is published after the commit, exactly as given."""

    subject: str
    body: bytes
    execution_id: int
    message_id: str = ""
    """Given by who publishes it by himself as well: the bus takes one of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """Creates the stream; `start_key` makes repeated starts one execution."""

    parent_execution_id: int | None = None
    start_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAppend:
    """Drafts for one execution."""

    execution_id: int
    drafts: tuple[Draft, ...]
    expected_stream_version: int | None = None
    start: StreamStart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest:
    """What one caller wants appended, all or nothing; it may span streams of one tenant."""

    tenant_id: str
    organization_id: str
    streams: tuple[StreamAppend, ...]
    fence: Fence | None = None
    """Of the writer, who owns one of the streams."""
    asked_by: Fence | None = None
    """Of whoever has the writer do it, and may do so only while he is elected: a reaper, which owns no stream."""
    hints: tuple[Hint, ...] = ()
    producer: str = ""

    @property
    def fences(self) -> tuple[Fence, ...]:
        """All that must hold when it is committed."""
        if self.asked_by is None:
            return () if self.fence is None else (self.fence,)
        return (self.asked_by,) if self.fence is None else (self.fence, self.asked_by)


class Appended(NamedTuple):
    """Outcome for one draft: its event, or the first one under its key."""

    event: StoredEvent
    duplicate: bool


Ahead = Callable[[tuple[Appended, ...]], None]
"""Hears what a request will come to when that is certain but for the commit itself, and must not wait."""


class PreparedDraft(NamedTuple):
    """A draft with everything that can be computed before the head lock is held.

    A tuple, as are the other values that every event passes through: they are made in a tenth of the time.
    """

    draft: Draft
    event_id: int
    event_time: datetime
    content_sha256: str
    body: bytes
    result: bytes | None = None
    """The result by itself, as it is spelt in the body."""


class PreparedStream(NamedTuple):
    """One stream of a prepared request."""

    append: StreamAppend
    drafts: tuple[PreparedDraft, ...]
    shard: int


class PreparedRequest(NamedTuple):
    """A request whose bodies are encoded."""

    request: AppendRequest
    streams: tuple[PreparedStream, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """Where a stream stands: what the next event continues."""

    execution_id: int
    tenant_id: str
    organization_id: str
    shard: int
    version: int = 0
    checksum: str = ""
    ingest_time: datetime | None = None
    terminal: bool = False
    parent_execution_id: int | None = None


class KnownKey(NamedTuple):
    """An idempotency key that the log has."""

    content_sha256: str
    event_id: int
    event: StoredEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """What the log says about the streams, keys, aggregates and leases of a batch, read under the head locks."""

    now: datetime
    heads: Mapping[int, Head]
    keys: Mapping[tuple[int, str], KnownKey] = field(default_factory=dict)
    aggregate_versions: Mapping[tuple[int, str], int] = field(default_factory=dict)
    epochs: Mapping[tuple[str, int], int] = field(default_factory=dict)
    started: Mapping[tuple[str, str, str], KnownKey] = field(default_factory=dict)
    """First events of executions, by (tenant, organization, start key)."""


class PlacedEvent(NamedTuple):
    """An accepted event with the facts that become columns."""

    stored: StoredEvent
    prepared: PreparedDraft
    head: Head
    aggregate_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """The verdict over a batch."""

    outcomes: tuple[tuple[Appended, ...] | NoetlError, ...]
    events: tuple[PlacedEvent, ...]
    heads: tuple[Head, ...]
    created: tuple[tuple[Head, StreamStart], ...]
    hints: tuple[Hint, ...]


MAX_BODY_BYTES = 64 * 1024
MAX_NAME_CHARACTERS = 512
"""Of keys and ids that are indexed: the largest entry that an index takes is not much larger."""
MAX_DRAFTS = 10_000
"""A decision may skip as many steps as a playbook can have."""
MAX_REQUEST_BYTES = 6 * 1024 * 1024
"""Of all bodies together: the answer has them too, and must fit into a message."""

_BACKSLASH = ord("\\")
_EARLIER = "@"
"""Before the place of a draft, where another one names that as its parent."""
_EVENT_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")


def prepare(
    request: AppendRequest, *, next_event_id: Callable[[], int], now: datetime, shard_count: int
) -> PreparedRequest:
    """Check what can be checked, and encode what can be encoded, before any lock is held."""
    _check_shape(request)
    streams: list[PreparedStream] = []
    total = 0
    for stream in request.streams:
        spelling = StreamSpelling(
            tenant_id=request.tenant_id,
            organization_id=request.organization_id,
            execution_id=stream.execution_id,
            producer=request.producer,
            parent_execution_id=stream.start.parent_execution_id if stream.start else None,
        )
        drafts: list[PreparedDraft] = []
        for draft in stream.drafts:
            parent = draft.parent_event_id
            named = _with_parent(draft, stream, drafts) if parent and parent[0] == _EARLIER else draft
            drafts.append(_prepare_draft(spelling, named, next_event_id(), now))
        total += sum([len(draft.body) for draft in drafts])
        streams.append(PreparedStream(stream, tuple(drafts), shard_of(stream.execution_id, shard_count)))
    if total > MAX_REQUEST_BYTES:
        raise InvalidInput(f"an append has {total} bytes, at most {MAX_REQUEST_BYTES} are allowed: split it")
    return PreparedRequest(request, tuple(streams))


def _check_shape(request: AppendRequest) -> None:
    if not request.streams:
        raise InvalidInput("an append names at least one stream")
    seen: set[int] = set()
    for stream in request.streams:
        if stream.execution_id in seen:
            raise InvalidInput(f"execution {stream.execution_id} is named twice in one append")
        seen.add(stream.execution_id)
        if not stream.drafts:
            raise InvalidInput(f"no drafts for execution {stream.execution_id}")
        if stream.start is not None and stream.start.start_key and len(stream.drafts) != 1:
            # Its repetition is answered with the first event of another execution, which has no others to offer.
            raise InvalidInput("a start under a start key has exactly one draft")
    if sum(len(stream.drafts) for stream in request.streams) > MAX_DRAFTS:
        raise InvalidInput(f"an append has at most {MAX_DRAFTS} drafts")
    for hint in request.hints:
        if hint.execution_id not in seen:
            raise InvalidInput(f"a hint follows execution {hint.execution_id}, which the append does not name")


def _with_parent(draft: Draft, stream: StreamAppend, earlier: Sequence[PreparedDraft]) -> Draft:
    """A draft whose parent is appended with it: nobody could name that one's event before now."""
    place = draft.parent_event_id[1:]
    if not (place.isascii() and place.isdecimal() and len(place) <= 5 and int(place) < len(earlier)):
        raise InvalidInput(f"{draft.event_type}: {draft.parent_event_id[:40]!r} is no draft that stands before it")
    if stream.expected_stream_version is None:
        # The other one might be a repetition: then its event is not the one that is named here.
        raise InvalidInput(f"{draft.event_type}: only an append at an expected version names its own drafts")
    return replace(draft, parent_event_id=str(earlier[int(place)].event_id))


def _prepare_draft(spelling: StreamSpelling, draft: Draft, event_id: int, now: datetime) -> PreparedDraft:
    _check_draft(draft)
    event_time = draft.event_time or now
    content_sha256, body, result = spelling.spell(draft, event_id, event_time)
    if len(body) > MAX_BODY_BYTES:
        raise InvalidInput(
            f"{draft.event_type} has {len(body)} bytes, an event has at most {MAX_BODY_BYTES}: store data as a payload"
        )
    # The only spelling that canonical JSON has for it; that there is no backslash at all is found much sooner.
    if _BACKSLASH in body and b"\\u0000" in body:
        _refuse_zero_characters(draft)
    return new_tuple(PreparedDraft, (draft, event_id, event_time, content_sha256, body, result))


def _check_draft(draft: Draft) -> None:
    event_type, key, aggregate_id = draft.event_type, draft.idempotency_key, draft.aggregate_id
    is_end = _ends_execution(event_type)
    if not key:
        raise InvalidInput(f"{event_type} has no idempotency key")
    if is_end != (key == END_KEY):
        raise InvalidInput(f"{event_type}: terminal events, and only they, have the key {END_KEY!r}")
    if not aggregate_id and draft.aggregate_type != EXECUTION_AGGREGATE:
        raise InvalidInput(f"{event_type} is about a {draft.aggregate_type} and does not say which")
    meta = draft.meta
    if (
        len(key) + len(aggregate_id) + len(draft.aggregate_type) + len(draft.stage_id) + len(draft.frame_id)
        + len(draft.command_id) > MAX_NAME_CHARACTERS
        or (meta and ("loop_id" in meta or "epoch_id" in meta))
    ) and max(map(len, _indexed_texts(draft))) > MAX_NAME_CHARACTERS:  # fmt: skip
        raise InvalidInput(f"{event_type}: keys, names and ids have at most {MAX_NAME_CHARACTERS} characters")
    if draft.result is not None:
        check_result_shape(draft.result)


@lru_cache(maxsize=4096)
def _ends_execution(event_type: str) -> bool:
    if _EVENT_TYPE.fullmatch(event_type) is None:
        raise InvalidInput(f"{event_type[:140]!r} is no event type")
    return is_terminal(event_type)


def _indexed_texts(draft: Draft) -> tuple[str, ...]:
    texts = (
        draft.idempotency_key,
        draft.aggregate_type,
        draft.aggregate_id,
        draft.stage_id,
        draft.frame_id,
        draft.command_id,
    )
    extracts = (draft.meta.get("loop_id"), draft.meta.get("epoch_id"))
    return (*texts, *(text for text in extracts if isinstance(text, str)))


def _refuse_zero_characters(draft: Draft) -> None:
    """The database's texts cannot hold them; the bytes of an event can."""
    for text in (*_indexed_texts(draft), draft.node_name):
        if "\0" in text:
            raise InvalidInput(f"{draft.event_type}: keys, names and ids cannot hold the character U+0000")
