"""Starts a playbook: pins its version, stores its variables, appends the first event."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from noetl_core.append import Ahead, Appended, AppendRequest, StreamAppend, StreamStart
from noetl_core.canonical import JsonObject, JsonValue, encode, sha256_hex
from noetl_core.children.state import CALL_KEYS, StartingCall
from noetl_core.collection.documents import json_media_type
from noetl_core.envelope import Envelope, StoredEvent
from noetl_core.errors import InvalidInput, InvalidPayload, KeyTaken, NotCanonical, Overtaken
from noetl_core.events import to_draft
from noetl_core.executions.events import PlaybookInitialized
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.model import Playbook
from noetl_core.ports.catalog import CatalogEntry, CatalogStore
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.payloads import PayloadStore
from noetl_core.timestamps import format_time
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import current_traceparent

from noetl_api.application import workload
from noetl_api.application.admission import everybody
from noetl_api.application.parents import check_call, depth_below, told_to_parent
from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.application.scopes import acting_scope
from noetl_api.telemetry import ApiMetrics

logger = get_logger()

START_KEY: Final = "execution/start"
MAX_PAYLOAD_BYTES: Final = 1024 * 1024
MAX_WORKLOAD_BYTES: Final = 4 * 1024 * 1024
MAX_START_KEY_CHARACTERS: Final = 255
MAX_REMEMBERED: Final = 256
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """Which playbook, with what, and under which key."""

    path: str = ""
    version: int = 0
    catalog_id: str = ""
    payload: Mapping[str, JsonValue] = field(default_factory=dict)
    start_key: str = ""
    parent_execution_id: int | None = None
    parent_call: StartingCall | None = None
    """The call of a worker; every start of one call is the same child, whatever else it says."""

    @property
    def own_key(self) -> str:
        """Under which the first start counts."""
        return self.parent_call.start_key if self.parent_call else self.start_key

    def sha256(self) -> str:
        """What makes two starts under one key the same request, whatever became of it."""
        return sha256_hex(
            encode(
                {
                    "path": self.path,
                    "version": self.version,
                    "catalog_id": self.catalog_id,
                    "payload": dict(self.payload),
                    "parent_execution_id": str(self.parent_execution_id or ""),
                }
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An execution that exists; `created` is false when its start key had been used before."""

    execution_id: int
    path: str
    version: int
    created: bool


class _Pinned(NamedTuple):
    entry: CatalogEntry
    playbook: Playbook


class StartExecution:
    """Bytes first, event second: nobody ever sees an execution whose variables are not there."""

    def __init__(
        self,
        *,
        log: EventLog,
        catalog: CatalogStore,
        parsed: ParsedPlaybooks,
        payloads: PayloadStore,
        next_id: Callable[[], int],
        clock: Callable[[], datetime],
        playbook_env: Mapping[str, str],
        metrics: ApiMetrics,
        on_started: Callable[[int, StoredEvent, bytes], None] = lambda execution_id, first, workload: None,
        let_in: Callable[[], None] = everybody,
        append_ahead: Callable[[AppendRequest, Ahead], Awaitable[tuple[Appended, ...]]] | None = None,
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._parsed = parsed
        self._payloads = payloads
        self._next_id = next_id
        self._clock = clock
        self._playbook_env = playbook_env
        self._metrics = metrics
        self._on_started = on_started
        self._let_in = let_in
        self._append_ahead = append_ahead
        self._last: OrderedDict[tuple[Scope, str, int, str], _Pinned] = OrderedDict()
        """Which version was started last under the same names."""

    async def __call__(self, caller: Caller, scope: Scope | None, request: StartRequest) -> Started:
        """Start it, or find the execution that was started under this key."""
        caller.require(Role.WRITER)
        owner = acting_scope(caller, scope)
        _check(request)
        if request.parent_call is not None:
            caller.require(Role.SERVICE)
        if request.parent_execution_id is None:
            self._let_in()
        depth = await self._depth(owner, request)
        try:
            return await self._start(caller, owner, request, depth, may_tell_ahead=request.parent_execution_id is None)
        except Overtaken:
            # A planner was told of an execution that does not exist. Its id is spent, so that what the planner knows
            # of it can never be half true.
            return await self._start(caller, owner, request, depth, may_tell_ahead=False)

    async def _start(
        self, caller: Caller, owner: Scope, request: StartRequest, depth: int | None, *, may_tell_ahead: bool
    ) -> Started:
        execution_id = self._next_id()
        entry, workload, payload_ref = await self._pinned(owner, request, execution_id)
        content = PlaybookInitialized(
            path=entry.path,
            version=entry.version,
            catalog_id=entry.catalog_id,
            payload_ref=payload_ref,
            depth=depth,
            parent_call=_waiting(request),
        )
        told: list[StoredEvent] = []
        context = copy_context()  # whoever commits works for many, and would tell it in the name of another call

        def tell(outcome: tuple[Appended, ...]) -> None:
            told.append(outcome[0].event)
            context.run(self._on_started, execution_id, outcome[0].event, workload)

        ahead = tell if may_tell_ahead else None
        first = await self._append(caller, owner, request, execution_id=execution_id, content=content, ahead=ahead)
        if isinstance(first, StoredEvent):
            if not told:
                self._on_started(execution_id, first, workload)  # before everything else: a planner waits for it
            started = Started(execution_id=execution_id, path=entry.path, version=entry.version, created=True)
            self._metrics.executions_started.inc()
            logger.info(
                "execution.started",
                execution_id=str(execution_id),
                path=started.path,
                version=started.version,
            )
            return started
        return _started_before(first, request)

    async def _depth(self, owner: Scope, request: StartRequest) -> int | None:
        """None without a parent; raises `NotFound` unless the parent is this owner's."""
        if request.parent_execution_id is None:
            return None
        page = await self._log.read(owner, request.parent_execution_id, limit=1)
        return depth_below(page.events[0].envelope())

    async def _pinned(
        self, owner: Scope, request: StartRequest, execution_id: int
    ) -> tuple[CatalogEntry, bytes, PayloadRef]:
        """The version that counts now, its variables, and where they are stored.

        Mostly it is the one that counted last: its variables are stored while the catalog is asked. If another one has
        come, or anything goes wrong with what was only expected, nobody hears of them, and they are collected.
        """
        place = place_of(owner, request)
        asking = self._catalog.get(owner, path=request.path, version=request.version, catalog_id=request.catalog_id)
        last = self._last.get(place)
        if last is None:
            source = await asking
        else:
            answer, expected = await asyncio.gather(
                asking, self._stored(owner, last.playbook, request, execution_id), return_exceptions=True
            )
            if isinstance(answer, BaseException):
                raise answer
            source = answer
            if source.entry.catalog_id == last.entry.catalog_id:
                if isinstance(expected, BaseException):
                    raise expected
                return source.entry, *expected
        playbook = await self._parsed.of(source)
        self._last[place] = _Pinned(source.entry, playbook)
        self._last.move_to_end(place)
        while len(self._last) > MAX_REMEMBERED:
            self._last.popitem(last=False)
        return source.entry, *await self._stored(owner, playbook, request, execution_id)

    async def _stored(
        self, owner: Scope, playbook: Playbook, request: StartRequest, execution_id: int
    ) -> tuple[bytes, PayloadRef]:
        workload = _spelt(await self._variables(playbook, request, execution_id))
        return workload, await self._store(owner, workload)

    async def _variables(self, playbook: Playbook, request: StartRequest, execution_id: int) -> JsonObject:
        variables = workload.merged(playbook.workload, request.payload)
        keys = workload.own_templates(playbook.workload, request.payload)
        if not keys:
            return variables
        return await asyncio.to_thread(  # templates may take their time, and others should not wait for them
            workload.rendered,
            variables,
            keys,
            payload=request.payload,
            execution_id=execution_id,
            env=self._playbook_env,
            now=format_time(self._clock()),
        )

    async def _store(self, owner: Scope, data: bytes) -> PayloadRef:
        return await self._payloads.put(
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            data=data,
            media_type=json_media_type(data),
        )

    async def _append(
        self,
        caller: Caller,
        owner: Scope,
        request: StartRequest,
        *,
        execution_id: int,
        content: PlaybookInitialized,
        ahead: Ahead | None,
    ) -> StoredEvent | Envelope:
        """The first event; read already if it is another execution's, which was started under the key before."""
        draft = to_draft(
            content,
            idempotency_key=START_KEY,
            meta={"request_sha256": request.sha256()},
            trace=current_traceparent() or "",
        )
        parent_id = request.parent_execution_id
        start = StreamStart(parent_execution_id=parent_id, start_key=request.own_key)
        streams = [StreamAppend(execution_id=execution_id, drafts=(draft,), start=start)]
        if parent_id is not None:
            call = request.parent_call
            streams.append(told_to_parent(parent_id, execution_id, content.path, call, trace=draft.trace))
        try:
            append = AppendRequest(
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                streams=tuple(streams),
                producer=f"urn:noetl:user:{caller.name}",
            )
            if ahead is None or self._append_ahead is None:
                appended = await self._log.append(append)
            else:
                appended = await self._append_ahead(append, ahead)
        except KeyTaken as taken:
            return await self._winner(owner, taken)
        return appended[0].event.envelope() if appended[0].duplicate else appended[0].event

    async def _winner(self, owner: Scope, taken: KeyTaken) -> Envelope:
        """The first event of the execution that was started under the key before."""
        if "execution_id" not in taken.facts:
            raise taken
        page = await self._log.read(owner, int(taken.facts["execution_id"]), limit=1)
        return page.events[0].envelope()


def check_start_key(key: str) -> None:
    """A start key of a caller."""
    if len(key) > MAX_START_KEY_CHARACTERS or _UNSTORABLE.search(key):
        raise InvalidInput(f"a start key has at most {MAX_START_KEY_CHARACTERS} characters, no U+0000, no surrogates")
    if key.startswith(CALL_KEYS):
        raise InvalidInput(f"start keys below {CALL_KEYS!r} belong to calls of NoETL itself")


def place_of(owner: Scope, request: StartRequest) -> tuple[Scope, str, int, str]:
    """What the catalog looks at: beside a `catalog_id` callers may write any path, of any length."""
    return (owner, "", 0, request.catalog_id) if request.catalog_id else (owner, request.path, request.version, "")


def _check(request: StartRequest) -> None:
    if not request.path and not request.catalog_id:
        raise InvalidInput("name the playbook to execute, by path or by catalog_id")
    if request.version < 0:
        raise InvalidInput("versions of playbooks count from 1")
    check_start_key(request.start_key)
    if request.parent_call is not None:
        check_call(request.parent_call)
        if request.parent_execution_id is None:
            raise InvalidInput("a call belongs to a parent: name its parent_execution_id")
    try:
        size = len(encode(dict(request.payload)))
    except NotCanonical as exc:
        raise InvalidPayload(f"the payload cannot be stored: {exc.message}") from exc
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidPayload(
            f"the payload has {size} bytes, at most {MAX_PAYLOAD_BYTES} are allowed: pass data by reference"
        )


def _waiting(request: StartRequest) -> JsonObject | None:
    call = request.parent_call.waiting if request.parent_call else None
    return call.to_json() if call else None


def _spelt(variables: JsonObject) -> bytes:
    try:
        data = encode(variables)
    except NotCanonical as exc:
        raise InvalidPayload(f"the variables cannot be stored: {exc.message}") from exc
    if len(data) > MAX_WORKLOAD_BYTES:
        raise InvalidPayload(f"the variables have {len(data)} bytes, at most {MAX_WORKLOAD_BYTES} are allowed")
    return data


def _started_before(first: Envelope, request: StartRequest) -> Started:
    if request.parent_call is None and first.meta.get("request_sha256") != request.sha256():
        raise KeyTaken(key=request.start_key, event_id=str(first.event_id), stream_version=1)
    return Started(
        execution_id=first.execution_id,
        path=str(first.meta["path"]),
        version=int(str(first.meta["version"])),
        created=False,
    )
