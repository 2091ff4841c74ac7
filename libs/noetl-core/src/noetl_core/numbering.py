"""What an append accepts: guards, duplicates, versions and the hash chain, decided purely under the head locks."""

from __future__ import annotations

from collections.abc import Sequence

from noetl_core.append import (
    END_KEY,
    Appended,
    AppendRequest,
    Fence,
    Head,
    Hint,
    KnownKey,
    LogView,
    Numbered,
    PlacedEvent,
    PreparedDraft,
    PreparedRequest,
    PreparedStream,
    StreamStart,
)
from noetl_core.envelope import EXECUTION_AGGREGATE, Draft, StoredEvent, link_checksum, time_bytes
from noetl_core.errors import (
    AlreadyExists,
    AlreadyTerminal,
    Fenced,
    InvalidInput,
    KeyTaken,
    NoetlError,
    NotFound,
    TooEarly,
    VersionConflict,
)
from noetl_core.events import is_allowed_after_end, is_terminal
from noetl_core.values import new_tuple, replace


class _Overlay:
    """The view, changed by what was accepted so far. A request works on an overlay of its own, so that a refused one
    leaves no trace."""

    def __init__(self, view: LogView, below: _Overlay | None = None) -> None:
        self.view = view
        self.below = below
        self.heads: dict[int, Head] = {}
        self.keys: dict[int, dict[str, PlacedEvent]] = {}
        self.aggregates: dict[int, dict[str, int]] = {}
        self.started: dict[tuple[str, str, str], KnownKey] = {}
        self.created: list[tuple[int, StreamStart]] = []
        self.events: list[PlacedEvent] = []

    def absorb(self, accepted: _Overlay) -> None:
        self.heads.update(accepted.heads)
        for execution_id, keys in accepted.keys.items():
            self.keys.setdefault(execution_id, {}).update(keys)
        for execution_id, versions in accepted.aggregates.items():
            self.aggregates.setdefault(execution_id, {}).update(versions)
        self.started.update(accepted.started)
        self.created.extend(accepted.created)
        self.events.extend(accepted.events)

    def head(self, execution_id: int) -> Head | None:
        found = self.heads.get(execution_id)
        if found is None:
            found = self.below.head(execution_id) if self.below else self.view.heads.get(execution_id)
        return found

    def start(self, tenant_id: str, organization_id: str, key: str) -> KnownKey | None:
        where = (tenant_id, organization_id, key)
        found = self.started.get(where)
        if found is None:
            found = self.below.start(tenant_id, organization_id, key) if self.below else self.view.started.get(where)
        return found

    def remember_start(self, head: Head, first: KnownKey) -> None:
        """Later starts under the same start key are answered with this event."""
        start_key = self.created[-1][1].start_key if self.created else ""
        if start_key:
            self.started[(head.tenant_id, head.organization_id, start_key)] = first


class _Keys:
    """The idempotency keys of one stream that are taken."""

    def __init__(self, execution_id: int, overlay: _Overlay) -> None:
        self.execution_id = execution_id
        self.taken = overlay.keys.setdefault(execution_id, {})
        self._taken_before = overlay.below.keys.get(execution_id) if overlay.below else None
        self._log = overlay.view.keys

    def known(self, key: str) -> KnownKey | None:
        placed = self.taken.get(key)
        if placed is None and self._taken_before:
            placed = self._taken_before.get(key)
        if placed is not None:
            return _known(placed)
        return self._log.get((self.execution_id, key)) if self._log else None


def _known(placed: PlacedEvent) -> KnownKey:
    return KnownKey(placed.prepared.content_sha256, placed.prepared.event_id, placed.stored)


def number(requests: Sequence[PreparedRequest], view: LogView) -> Numbered:
    """Give each request its verdict and each accepted draft its place; a loser harms only itself."""
    batch = _Overlay(view)
    outcomes: list[tuple[Appended, ...] | NoetlError] = []
    hints: list[Hint] = []
    for prepared in requests:
        attempt = _Overlay(view, batch)
        try:
            appended = _number_request(prepared, attempt)
        except NoetlError as refusal:
            outcomes.append(refusal)
            continue
        batch.absorb(attempt)
        outcomes.append(appended)
        if attempt.events:
            hints.extend(prepared.request.hints)
    created_ids = {execution_id for execution_id, _ in batch.created}
    return Numbered(
        outcomes=tuple(outcomes),
        events=tuple(batch.events),
        heads=tuple(head for head in batch.heads.values() if head.execution_id not in created_ids),
        created=tuple((batch.heads[execution_id], start) for execution_id, start in batch.created),
        hints=tuple(hints),
    )


def _number_request(prepared: PreparedRequest, overlay: _Overlay) -> tuple[Appended, ...]:
    request = prepared.request
    appended: list[Appended] = []
    for stream in prepared.streams:
        found = _number_stream(request, stream, overlay)
        if found[0].duplicate and len(prepared.streams) > 1:
            _refuse_taken_start(stream, found[0].event)
        appended.extend(found)
    if overlay.events:
        _check_fences(request, prepared.streams, overlay.view)
    return tuple(appended)


def _refuse_taken_start(stream: PreparedStream, first: StoredEvent) -> None:
    """What else the request says speaks of an execution that there will not be; the first one is named."""
    start, envelope = stream.append.start, first.envelope()
    if start is None or envelope.execution_id == stream.append.execution_id:
        return
    raise KeyTaken(
        key=start.start_key,
        event_id=str(envelope.event_id),
        stream_version=first.stream_version,
        execution_id=str(envelope.execution_id),
    )


def _check_fences(request: AppendRequest, streams: Sequence[PreparedStream], view: LogView) -> None:
    owner = request.fence
    if owner is not None and all(stream.shard != owner.shard for stream in streams):
        raise InvalidInput(f"fence of shard {owner.shard} given for streams of other shards")
    for fence in request.fences:
        _check_fence(fence, view)


def _check_fence(fence: Fence, view: LogView) -> None:
    current = view.epochs.get((fence.role, fence.shard), 0)
    if current != fence.epoch:
        raise Fenced(role=fence.role, shard=fence.shard, epoch=fence.epoch, current=current)


def _number_stream(request: AppendRequest, stream: PreparedStream, overlay: _Overlay) -> tuple[Appended, ...]:
    first = _first_start(request, stream.append.start, overlay)
    if first is not None:
        return (Appended(event=first.event, duplicate=True),)
    head = overlay.head(stream.append.execution_id)
    if stream.append.start is None:
        head = _visible(request, stream, head)
    elif head is None:
        head = _new_head(request, stream, stream.append.start)
        overlay.created.append((head.execution_id, stream.append.start))
    else:
        return _repeated_start(request, stream, head, overlay)
    expected = stream.append.expected_stream_version
    if expected is not None and expected != head.version and not _all_known(head, stream, overlay):
        raise VersionConflict(subject=f"execution {head.execution_id}", expected=expected, current=head.version)
    keys = _Keys(head.execution_id, overlay)
    tail = _Tail(head, keys, overlay)
    appended: list[Appended] = []
    for draft in stream.drafts:
        duplicate = _duplicate_of(draft, keys)
        if duplicate is not None:
            appended.append(Appended(event=duplicate.event, duplicate=True))
        else:
            appended.append(new_tuple(Appended, (tail.place(draft), False)))
    overlay.heads[head.execution_id] = tail.head()
    return tuple(appended)


def _all_known(head: Head, stream: PreparedStream, overlay: _Overlay) -> bool:
    """Whether the stream's drafts are all duplicates; asked only where the answer matters, since it looks twice."""
    keys = _Keys(head.execution_id, overlay)
    return all(_duplicate_of(draft, keys) is not None for draft in stream.drafts)


def _first_start(request: AppendRequest, start: StreamStart | None, overlay: _Overlay) -> KnownKey | None:
    """The first start under a start key answers every later one.

    Whether that was the same request is for the caller to judge: the content of a start depends on its execution's
    id, so it differs even between equal requests.
    """
    if start is None or not start.start_key:
        return None
    return overlay.start(request.tenant_id, request.organization_id, start.start_key)


def _visible(request: AppendRequest, stream: PreparedStream, head: Head | None) -> Head:
    if head is None or not _belongs(head, request):
        raise NotFound("execution", stream.append.execution_id, code="execution.not_found")
    return head


def _belongs(head: Head, request: AppendRequest) -> bool:
    return head.tenant_id == request.tenant_id and head.organization_id == request.organization_id


def _new_head(request: AppendRequest, stream: PreparedStream, start: StreamStart) -> Head:
    return Head(
        execution_id=stream.append.execution_id,
        tenant_id=request.tenant_id,
        organization_id=request.organization_id,
        shard=stream.shard,
        parent_execution_id=start.parent_execution_id,
    )


def _repeated_start(
    request: AppendRequest, stream: PreparedStream, head: Head, overlay: _Overlay
) -> tuple[Appended, ...]:
    """A start that is sent again is answered; another one under a taken id is not."""
    keys = _Keys(head.execution_id, overlay)
    known = [_duplicate_of(draft, keys) for draft in stream.drafts] if _belongs(head, request) else [None]
    found = tuple(Appended(event=one.event, duplicate=True) for one in known if one is not None)
    if len(found) < len(known):
        raise AlreadyExists(f"execution {head.execution_id} exists already")
    return found


def _duplicate_of(draft: PreparedDraft, keys: _Keys) -> KnownKey | None:
    key = draft.draft.idempotency_key
    known = keys.known(key)
    if known is None or known.content_sha256 == draft.content_sha256:
        return known
    if key == END_KEY:
        raise AlreadyTerminal(str(keys.execution_id))
    raise KeyTaken(key=key, event_id=str(known.event_id), stream_version=known.event.stream_version)


class _Tail:
    """Where a stream ends while drafts are being placed behind each other."""

    def __init__(self, head: Head, keys: _Keys, overlay: _Overlay) -> None:
        self._head = head
        self._keys = keys.taken
        self._overlay = overlay
        self._own_id = str(head.execution_id)
        self._version = head.version
        self._checksum = head.checksum
        self._terminal = head.terminal
        now = overlay.view.now
        self._ingest_time = now if head.ingest_time is None else max(head.ingest_time, now)
        self._time = time_bytes(self._ingest_time)
        self._aggregates = overlay.aggregates.setdefault(head.execution_id, {})

    def head(self) -> Head:
        """The head after everything that was placed."""
        if self._version == self._head.version:
            return self._head
        return replace(
            self._head,
            version=self._version,
            checksum=self._checksum,
            ingest_time=self._ingest_time,
            terminal=self._terminal,
        )

    def place(self, prepared: PreparedDraft) -> StoredEvent:
        """The next event of the stream, if nothing forbids it."""
        draft, _, _, _, body, _ = prepared
        if self._terminal and not is_allowed_after_end(draft.event_type):
            raise AlreadyTerminal(self._own_id)
        if draft.not_before is not None and self._overlay.view.now < draft.not_before:
            raise TooEarly(f"{draft.event_type} may not happen before {draft.not_before.isoformat()}")
        aggregate_id = draft.aggregate_id or self._own_id
        aggregate_version = self._next_aggregate_version(draft, aggregate_id)
        self._version = version = self._version + 1
        before = self._checksum
        self._checksum = checksum = link_checksum(before, version, aggregate_version, self._time, body)
        stored = new_tuple(StoredEvent, (body, version, aggregate_version, self._ingest_time, before, checksum))
        if is_terminal(draft.event_type):
            self._terminal = True
        placed = new_tuple(PlacedEvent, (stored, prepared, self._head, aggregate_id))
        self._keys[draft.idempotency_key] = placed
        if version == 1:
            self._overlay.remember_start(self._head, _known(placed))
        self._overlay.events.append(placed)
        return stored

    def _next_aggregate_version(self, draft: Draft, aggregate_id: str) -> int:
        """The execution's own aggregate moves with its stream; others count their own events."""
        if draft.aggregate_type == EXECUTION_AGGREGATE:
            current = self._version
        else:
            known = self._aggregates.get(aggregate_id)
            current = self._aggregate_version_before(aggregate_id) if known is None else known
            self._aggregates[aggregate_id] = current + 1
        expected = draft.expected_aggregate_version
        if expected is not None and expected != current:
            raise VersionConflict(subject=f"{draft.aggregate_type} {aggregate_id}", expected=expected, current=current)
        return current + 1

    def _aggregate_version_before(self, aggregate_id: str) -> int:
        """As earlier requests of the batch have left it, or as it is in the log."""
        execution_id, below = self._head.execution_id, self._overlay.below
        versions = below.aggregates.get(execution_id, {}) if below else {}
        found = versions.get(aggregate_id)
        return self._overlay.view.aggregate_versions.get((execution_id, aggregate_id), 0) if found is None else found
