"""Shows what the calls of an execution printed: found in its history, read from where payloads are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from noetl_core.call_logs import CallLog, EndedCallLog
from noetl_core.canonical import decode
from noetl_core.commands.events import CallDone, CallFailed
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt, NotFound
from noetl_core.payloads import PayloadRef
from noetl_core.ports.event_log import Scope
from noetl_core.ports.payloads import PayloadStore
from noetl_core.recorded import Recorded, record
from noetl_core.stages.events import FrameCommitted, FrameFailed
from noetl_servicekit.callers import Caller

from noetl_api.application.page_sizes import page_size
from noetl_api.application.read_events import ReadEvents
from noetl_api.application.watch_events import WatchEvents

Printing = CallDone | CallFailed | FrameCommitted | FrameFailed
"""What refers to what calls have printed: those of a command, and those of all rows of a frame."""
DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 200
MAX_SCANNED_EVENTS: Final = 5_000
"""Of a history in which little was printed, one page is answered from at most so many events."""
MAX_PAGE_CHARACTERS: Final = 4 * 1024 * 1024
MAX_BATCH_CHARACTERS: Final = 256 * 1024
"""A page, or a message of a stream, is closed when it has so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Logs in the order of the calls' ends, and the version to continue from; 0 when there is nothing more."""

    calls: Sequence[EndedCallLog]
    next_version: int
    terminal: bool = False


class ReadLogs:
    """Whoever may see the history may see what was printed."""

    def __init__(self, *, read_events: ReadEvents, watch_events: WatchEvents, payloads: PayloadStore) -> None:
        self._read_events = read_events
        self._watch_events = watch_events
        self._payloads = payloads

    async def page(
        self,
        caller: Caller,
        scope: Scope | None,
        execution_id: int,
        *,
        step: str = "",
        attempt: int = 0,
        from_version: int = 0,
        size: int = 0,
    ) -> LogPage:
        """One page; 0 stands for the start, every attempt and the usual size."""
        wanted = page_size(size, default=DEFAULT_PAGE, maximum=MAX_PAGE)
        calls: list[EndedCallLog] = []
        following, scanned, room = from_version, 0, MAX_PAGE_CHARACTERS
        while True:
            read = await self._read_events.page(caller, scope, execution_id, from_version=following)
            for event in read.page.events:
                call = await self._call(event, step)
                if call is None or (attempt and call.log.attempt != attempt):
                    continue
                calls.append(call)
                room -= call.log.size
                if len(calls) >= wanted or room <= 0:
                    more = event.stream_version < read.page.head_version
                    return LogPage(calls=calls, next_version=event.stream_version + 1 if more else 0)
            scanned += len(read.page.events)
            following = read.next_version
            if not following or scanned >= MAX_SCANNED_EVENTS:
                return LogPage(calls=calls, next_version=following)

    async def stream(
        self,
        caller: Caller,
        scope: Scope | None,
        execution_id: int,
        *,
        step: str = "",
        from_version: int = 0,
        follow: bool = False,
    ) -> AsyncIterator[LogPage]:
        """Everything that there is; with `follow` also what comes, as calls end, until the execution does."""
        if follow:
            async for page, ended in self._watch_events(caller, scope, execution_id, from_version=from_version):
                async for batch in self._batches(page.events, step):
                    yield batch
                if ended:
                    yield LogPage(calls=(), next_version=page.head_version + 1, terminal=True)
            return
        async for page in self._read_events.all(caller, scope, execution_id, from_version=from_version):
            async for batch in self._batches(page.events, step):
                yield batch

    async def _batches(self, events: Sequence[StoredEvent], step: str) -> AsyncIterator[LogPage]:
        calls: list[EndedCallLog] = []
        for event in events:
            call = await self._call(event, step)
            if call is not None:
                calls.append(call)
            if sum(one.log.size for one in calls) >= MAX_BATCH_CHARACTERS:
                yield LogPage(calls=calls, next_version=event.stream_version + 1)
                calls = []
        if events:
            yield LogPage(calls=calls, next_version=events[-1].stream_version + 1)

    async def _call(self, event: StoredEvent, step: str) -> EndedCallLog | None:
        recorded = record(event)
        content = recorded.content
        if not isinstance(content, Printing) or content.logs is None:
            return None
        if step and content.step != step:
            return None
        try:
            log = CallLog.from_json(decode(await self._payloads.get(PayloadRef.from_json(content.logs))))
        except (NotFound, Corrupt) as exc:
            return _ended(recorded, content, CallLog(step=content.step, activation=0, attempt=0), exc.message)
        return _ended(recorded, content, log)


def _ended(recorded: Recorded, content: Printing, log: CallLog, missing: str = "") -> EndedCallLog:
    return EndedCallLog(
        stream_version=recorded.stream_version,
        command_id=content.command_id if isinstance(content, CallDone | CallFailed) else content.frame_id,
        failed=isinstance(content, CallFailed | FrameFailed),
        ended_at=recorded.ingest_time,
        log=log,
        missing=missing,
    )
