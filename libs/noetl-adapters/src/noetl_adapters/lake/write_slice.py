"""Writes one slice of an export aside: its events are read from the log, checked, and made files of.

The same code runs in the process of an export and in tasks of Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC
from typing import Final

from noetl_core.canonical import sha256_hex
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt
from noetl_core.evidence.chain import ChainCheck, Head
from noetl_core.lake.manifest import LakeFile, event_path, pending_path
from noetl_core.lake.slices import Slice, VersionRange, WrittenSlice
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.lake import LakeFiles, LakeFormat

FILE_BYTES: Final = 32 * 1024 * 1024
"""Of events that are held until they are written; a slice of large events becomes several files."""
_PAGE: Final = 1000
_READS: Final = 16
"""Executions that are read at once; an answer has at most 4 MiB."""


class InlineSlices:
    """Port `SliceWriter`, in this process: one after the other."""

    at_once: Final = 1

    def __init__(self, log: EventLog, files: LakeFiles, format: LakeFormat) -> None:  # noqa: A002 - of the lake
        self._log = log
        self._files = files
        self._format = format

    async def write(self, one: Slice) -> WrittenSlice:
        """Read, check, write."""
        return await write_slice(self._log, self._files, self._format, one)


async def write_slice(
    log: EventLog,
    files: LakeFiles,
    format: LakeFormat,  # noqa: A002 - the format of the lake
    one: Slice,
    *,
    file_bytes: int = FILE_BYTES,
) -> WrittenSlice:
    """Memory is bounded by what a file holds and by what is read at once, not by the slice."""
    aside = _Aside(files, format, batch=one.batch, file_bytes=file_bytes)
    follows: list[str] = []
    ends: list[str] = []
    for start in range(0, len(one.ranges), _READS):
        together = one.ranges[start : start + _READS]
        firsts = await asyncio.gather(*(_read(log, span, span.first) for span in together))
        for span, first in zip(together, firsts, strict=True):
            follows.append(first[0].prev_checksum)
            ends.append(await _take(log, span, first, aside))
    return WrittenSlice(files=aside.finish(), follows=tuple(follows), ends=tuple(ends))


async def _take(log: EventLog, span: VersionRange, page: Sequence[StoredEvent], aside: _Aside) -> str:
    """All of a range, from its first page on; gives the checksum of its last event."""
    # What stands before the range is not read again: whoever has both sides compares them.
    before = Head(version=span.first - 1, checksum=page[0].prev_checksum) if span.first > 1 else None
    chain = ChainCheck(span.execution_id, deep=False, after=before)
    while True:
        for finding in chain.take(page):
            raise Corrupt(f"execution {span.execution_id}: {finding.message}")
        aside.add(span.tenant_id, page)
        if chain.version >= span.last:
            break
        page = await _read(log, span, chain.version + 1)
    for finding in chain.end(Head(version=span.last, checksum=span.checksum)):
        raise Corrupt(f"execution {span.execution_id}: {finding.message}")
    return chain.checksum


async def _read(log: EventLog, span: VersionRange, version: int) -> Sequence[StoredEvent]:
    page = await log.read(None, span.execution_id, from_version=version, to_version=span.last, limit=_PAGE)
    if not page.events or page.events[0].stream_version != version:
        raise Corrupt(f"event {version} of execution {span.execution_id} is missing; it ends at {page.head_version}")
    return page.events


class _Aside:
    """Events that wait to be written, by tenant and date; where they are cut depends on nothing but themselves."""

    def __init__(
        self,
        files: LakeFiles,
        format: LakeFormat,  # noqa: A002 - the format of the lake
        *,
        batch: int,
        file_bytes: int,
    ) -> None:
        self._files = files
        self._format = format
        self._batch = batch
        self._file_bytes = file_bytes
        self._held: dict[tuple[str, str], list[StoredEvent]] = {}
        self._held_bytes = 0
        self._written: list[LakeFile] = []

    def add(self, tenant_id: str, events: Sequence[StoredEvent]) -> None:
        for event in events:
            date = event.ingest_time.astimezone(UTC).date().isoformat()
            self._held.setdefault((tenant_id, date), []).append(event)
            self._held_bytes += len(event.body)
            if self._held_bytes >= self._file_bytes:
                self._write()

    def finish(self) -> tuple[LakeFile, ...]:
        """All files, so that events of an execution come in their order: ingest times never go back within one."""
        self._write()
        return tuple(self._written)

    def _write(self) -> None:
        for (tenant_id, date), events in sorted(self._held.items()):
            data = self._format.encode_events(events)
            digest = sha256_hex(data)
            self._files.write(pending_path(self._batch, digest), data)
            path = event_path(self._batch, digest, tenant_id=tenant_id, date=date)
            self._written.append(LakeFile(path=path, rows=len(events), bytes=len(data), sha256=digest))
        self._held, self._held_bytes = {}, 0
