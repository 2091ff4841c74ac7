"""The rows of a streaming call on their way out: stored, then told, each chunk once, two in memory at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from noetl_core.canonical import JsonValue
from noetl_core.errors import AlreadyTerminal, Conflict, InvalidInput, LeaseLost, NoetlError
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import Commands, GrantedCommand, ToldChunk, Worker
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE, TELL_WITHIN_SECONDS, PayloadStore
from noetl_core.ports.tables import Tables
from noetl_core.recorded import record
from noetl_core.streams.events import CallPartial
from noetl_core.streams.state import Place
from noetl_servicekit.chunk_rows import StoredChunk, mark_of
from noetl_servicekit.stored_values import encode_value

from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.resting import Resting

WAIT_SECONDS: Final = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Pauses while too many chunks wait for their turn, or nobody can take them."""


class ChunkNotTold(Exception):
    """A chunk could not be stored or told: the outcome in which the call ends."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error.message if outcome.error else "")
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class TellChunks:
    """What all streams of a worker use."""

    commands: Commands
    log: EventLog
    payloads: PayloadStore
    tables: Tables
    worker: Worker
    resting: Resting
    count: Callable[[], None] = lambda: None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    async def open(self, command: GrantedCommand, *, task: str, call: int, chunk_rows: int) -> ChunkStream:
        """The stream of one call; chunks that earlier attempts have told are known from the log."""
        stream = ChunkStream(self, command, task=task, call=call, chunk_rows=chunk_rows)
        if command.streamed > Place(call=call):
            stream.told_before(await self._told(command, call), is_closed=command.streamed.call > call)
        return stream

    async def _told(self, command: GrantedCommand, call: int) -> list[StoredChunk]:
        found: list[StoredChunk] = []
        version = 1
        while True:
            page = await self.log.read(None, command.key.execution_id, from_version=version)
            for event in page.events:
                content = record(event).content
                if isinstance(content, CallPartial) and _is_of(content, command, call):
                    found.append(StoredChunk(ref=content.payload_ref, row_count=content.row_count))
            version += len(page.events)
            if not page.events or version > page.head_version:
                return found


class ChunkStream:
    """One call: a tool puts rows, and what an earlier attempt has told of them is passed over."""

    def __init__(self, tell: TellChunks, command: GrantedCommand, *, task: str, call: int, chunk_rows: int) -> None:
        self._tell = tell
        self._command = command
        self._task = task
        self._call = call
        self._place = ResultPlace(
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            execution_id=command.key.execution_id,
            step=command.step,
        )
        self._secrets = KnownSecrets()
        self._told: list[StoredChunk] = []
        self._is_closed = False
        self._index = 0
        self._held: list[JsonValue] | None = None
        self.chunk_rows = chunk_rows

    @property
    def row_count(self) -> int:
        """How many rows have been told."""
        return sum(chunk.row_count for chunk in self._told)

    def told_before(self, chunks: Sequence[StoredChunk], *, is_closed: bool) -> None:
        """What earlier attempts have told; of a call that had ended, there is nothing to add."""
        self._told = list(chunks)
        self._is_closed = is_closed

    def restart(self, secrets: KnownSecrets | None = None) -> None:
        """The call is made, maybe again, from its first row; these secrets stay out of what is stored."""
        self._secrets = secrets or KnownSecrets()
        self._index = 0
        self._held = None

    async def put(self, rows: list[JsonValue]) -> None:
        """Hold a chunk until it is known whether another one follows."""
        if not rows:
            return
        index, self._index = self._index, self._index + 1
        if self._is_closed or index < len(self._told):
            return
        held, self._held = self._held, rows
        if held is not None:
            await self._send(held, has_more=True)

    async def settle(self, outcome: Outcome, *, keys: Sequence[str] = ("rows",)) -> Outcome:
        """Tell what is held, and give the outcome the numbers of all chunks, with marks in place of rows."""
        await self._put_what_was_returned(outcome)
        held, self._held = self._held, None
        if held is not None:
            await self._send(held, has_more=outcome.error is not None)
        if outcome.error is not None or not isinstance(outcome.data, dict):
            return outcome
        self._is_closed = True  # its last chunk is told: a call that is made again has nothing to add
        mark = mark_of(self._told)
        numbers: dict[str, JsonValue] = {"row_count": self.row_count, "chunk_count": len(self._told)}
        return replace(outcome, data={**outcome.data, **numbers, **dict.fromkeys(keys, mark)})

    async def _put_what_was_returned(self, outcome: Outcome) -> None:
        """A tool that knows nothing of streams has its rows in its result: they are told as if it did."""
        rows = outcome.data.get("rows") if isinstance(outcome.data, dict) else None
        if self._index or not isinstance(rows, list):
            return
        for start in range(0, len(rows), self.chunk_rows):
            await self.put(rows[start : start + self.chunk_rows])

    async def _send(self, rows: list[JsonValue], *, has_more: bool) -> None:
        """Bytes first; then the chunk is told until it is taken, or does not count any more."""
        count = len(rows)
        try:
            ref = await self._store(*await asyncio.to_thread(self._encoded, rows))
        except NoetlError as exc:
            raise _not_told(f"a chunk could not be stored: {exc.message}", code=REFERENCE_NOT_AVAILABLE) from exc
        chunk = ToldChunk(
            task=self._task,
            call=self._call,
            chunk_index=len(self._told),
            row_count=count,
            has_more=has_more,
            rows=ref,
        )
        del rows
        if not await self._try(chunk):
            await self._wait_for_room(chunk)
        self._told.append(StoredChunk(ref=ref, row_count=count))
        self._tell.count()

    async def _wait_for_room(self, chunk: ToldChunk) -> None:
        with self._tell.resting.resting(self._command.key):
            tries, stored_at = 0, self._tell.clock()
            while True:
                await self._tell.sleep(WAIT_SECONDS[min(tries, len(WAIT_SECONDS) - 1)])
                tries += 1
                if self._tell.clock() - stored_at > TELL_WITHIN_SECONDS:
                    stored_at = self._tell.clock()
                    await self._store_again(chunk.rows)
                if await self._try(chunk):
                    return

    async def _store_again(self, ref: PayloadRef) -> None:
        """No event tells of it yet, so a collector may have taken it for garbage."""
        try:
            await self._store(await self._tell.payloads.get(ref), ref.media_type)
        except NoetlError as exc:
            raise _not_told(f"a chunk could not be kept: {exc.message}", code=REFERENCE_NOT_AVAILABLE) from exc

    async def _try(self, chunk: ToldChunk) -> bool:
        """False means later: whoever stops counting is stopped by the heartbeats, and not from here."""
        try:
            return await self._tell.commands.tell_chunk(self._tell.worker, self._command.key, chunk)
        except (LeaseLost, AlreadyTerminal):
            raise
        except InvalidInput as exc:
            raise _not_told(exc.message, code=exc.code) from exc
        except NoetlError as exc:
            if not exc.retryable and not isinstance(exc, Conflict):
                raise _not_told(exc.message, code=exc.code) from exc
            return False

    async def _store(self, data: bytes, media_type: str) -> PayloadRef:
        persist = PersistBeforeEmit(self._tell.payloads, self._tell.tables, sleep=self._tell.sleep)
        return await persist.put(self._place, data, media_type=media_type)

    def _encoded(self, rows: list[JsonValue]) -> tuple[bytes, str]:
        told = self._secrets.hide_in_data(rows, whole=True) if self._secrets else rows
        encoded = encode_value(told if isinstance(told, list) else rows, self._tell.tables)
        return encoded.data, encoded.media_type


def _is_of(told: CallPartial, command: GrantedCommand, call: int) -> bool:
    """Whether any attempt at this command has told it."""
    index = command.item.index if command.item else None
    place = (told.step, told.activation, told.loop_iteration_index, told.call)
    return place == (command.step, command.activation, index, call)


def _not_told(message: str, *, code: str) -> ChunkNotTold:
    return ChunkNotTold(
        Outcome.failed(kind=ErrorKind.STORAGE_ACCESS, code=code, message=message[:1000], retryable=True)
    )
