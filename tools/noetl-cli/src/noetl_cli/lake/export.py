"""Exports the log to a lake: resumable, and every event in exactly one file.

A batch is written aside, counts with its manifest, and is given its place afterwards: readers of the files see nothing
of a batch that does not count. Whoever is stopped at any point goes on from the last manifest; of two exporters at
once one takes each manifest, and the other begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from noetl_core.canonical import sha256_hex
from noetl_core.envelope import StoredEvent
from noetl_core.errors import AlreadyExists, Corrupt
from noetl_core.lake.manifest import (
    MANIFESTS,
    PENDING,
    LakeFile,
    Manifest,
    Progress,
    event_path,
    follow,
    never_counted,
    pending_path,
    positions_path,
)
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.lake import LakeFiles, LakeFormat
from noetl_core.ports.streams import StreamHead, StreamPage, Streams

OVERLAP: Final = timedelta(seconds=15)
"""Transactions last at most 5 s, so no head that committed late can hide behind this."""
BATCH_EVENTS: Final = 20_000
BATCHES_BETWEEN_POSITIONS: Final = 64
_PAGE: Final = 1000
_READS: Final = 16
"""Executions that are read at once."""


@dataclass(slots=True)
class Exported:
    """What a run did."""

    events: int = 0
    executions: int = 0
    files: int = 0
    batches: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Batch:
    events: dict[tuple[str, str], list[StoredEvent]] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def add(self, head: StreamHead, events: Iterable[StoredEvent]) -> None:
        for event in events:
            date = event.ingest_time.astimezone(UTC).date().isoformat()
            self.events.setdefault((head.tenant_id, date), []).append(event)
            self.positions[head.execution_id] = event.stream_version
            self.count += 1


class LakeExport:
    """One lake; what it is of is fixed by its first batch."""

    def __init__(
        self,
        log: EventLog,
        streams: Streams,
        files: LakeFiles,
        format: LakeFormat,  # noqa: A002 - the format of the lake
        *,
        scope: Scope | None,
        batch_events: int = BATCH_EVENTS,
        positions_every: int = BATCHES_BETWEEN_POSITIONS,
        report: Callable[[Exported], None] = lambda done: None,
    ) -> None:
        self._log = log
        self._streams = streams
        self._files = files
        self._format = format
        self._scope = scope
        self._batch_events = batch_events
        self._positions_every = positions_every
        self._report = report

    async def run(self) -> Exported:
        """Bring the lake up to the log as it is now; raises `AlreadyExists` if another export does the same."""
        progress, done = self._resume(), Exported()
        since = progress.scanned_to - OVERLAP if progress.scanned_to else None
        began: datetime | None = None
        batch = _Batch()
        async for page in self._pages(since):
            began = began or page.now
            behind = [head for head in page.heads if progress.positions.get(head.execution_id, 0) < head.version]
            done.executions += len(behind)
            async for head, events in self._events(behind, progress.positions):
                batch.add(head, events)
                if batch.count >= self._batch_events:
                    progress, batch = self._commit(progress, batch, done, scanned_to=None), _Batch()
        if batch.count:
            self._commit(progress, batch, done, scanned_to=began)
        return done

    async def _pages(self, since: datetime | None) -> AsyncIterator[StreamPage]:
        after, more = 0, True
        while more:
            page = await self._streams.list_streams(self._scope, after=after, moved_since=since, limit=_PAGE)
            yield page
            more, after = page.more, page.heads[-1].execution_id if page.heads else 0

    async def _events(
        self, heads: Sequence[StreamHead], positions: Mapping[int, int]
    ) -> AsyncIterator[tuple[StreamHead, Sequence[StoredEvent]]]:
        """What is missing of each, in the order of versions; short histories are read side by side."""
        for start in range(0, len(heads), _READS):
            together = heads[start : start + _READS]
            firsts = await asyncio.gather(
                *(self._read(head, positions.get(head.execution_id, 0) + 1) for head in together)
            )
            for head, events in zip(together, firsts, strict=True):
                yield head, events
                at = events[-1].stream_version
                while at < head.version:
                    further = await self._read(head, at + 1)
                    yield head, further
                    at = further[-1].stream_version

    async def _read(self, head: StreamHead, version: int) -> Sequence[StoredEvent]:
        page = await self._log.read(None, head.execution_id, from_version=version, to_version=head.version, limit=_PAGE)
        if not page.events or page.events[0].stream_version != version:
            raise Corrupt(f"event {version} of execution {head.execution_id} is missing; it ends at {head.version}")
        return page.events

    def _resume(self) -> Progress:
        """From the last positions that were written, and the manifests since."""
        progress = Progress(scope=scope_name(self._scope))
        paths = self._files.list(MANIFESTS)
        last: Manifest | None = None
        for path in paths[_last_with_positions(self._files, paths) :]:
            data = self._files.read(path)
            last = Manifest.from_bytes(data)
            known = None
            if last.positions_file is not None:
                self._give_places(last)
                known = self._format.decode_positions(self._files.read(last.positions_file.path))
            progress = follow(progress, data, known=known)
        if last is not None:
            self._give_places(last)
            for path in never_counted(self._files.list(PENDING), last):
                self._files.remove(path)
        return progress

    def _commit(self, progress: Progress, batch: _Batch, done: Exported, *, scanned_to: datetime | None) -> Progress:
        manifest = Manifest(
            batch=progress.next_batch,
            scope=progress.scope,
            files=tuple(
                self._write_aside(progress.next_batch, tenant_id, date, events)
                for (tenant_id, date), events in sorted(batch.events.items())
            ),
            positions=batch.positions,
            scanned_to=scanned_to,
            previous_sha256=progress.last_sha256,
        )
        if manifest.batch % self._positions_every == 0:
            positions = self._format.encode_positions({**progress.positions, **batch.positions})
            manifest = replace(manifest, positions_file=self._positions_aside(manifest.batch, positions))
        data = manifest.to_bytes()
        try:
            self._files.create(manifest.path, data)
        except AlreadyExists:
            for file in manifest.all_files:
                self._files.remove(pending_path(manifest.batch, file.sha256))
            raise
        self._give_places(manifest)
        done.events += batch.count
        done.files += len(manifest.files)
        done.batches += 1
        done.bytes += sum(file.bytes for file in manifest.files)
        self._report(done)
        return follow(progress, data)

    def _write_aside(self, batch: int, tenant_id: str, date: str, events: list[StoredEvent]) -> LakeFile:
        data = self._format.encode_events(events)
        digest = sha256_hex(data)
        self._files.write(pending_path(batch, digest), data)
        path = event_path(batch, digest, tenant_id=tenant_id, date=date)
        return LakeFile(path=path, rows=len(events), bytes=len(data), sha256=digest)

    def _positions_aside(self, batch: int, data: bytes) -> LakeFile:
        digest = sha256_hex(data)
        self._files.write(pending_path(batch, digest), data)
        return LakeFile(path=positions_path(batch, digest), rows=0, bytes=len(data), sha256=digest)

    def _give_places(self, manifest: Manifest) -> None:
        for file in manifest.all_files:
            self._files.move(pending_path(manifest.batch, file.sha256), file.path)


def scope_name(scope: Scope | None) -> str:
    """Whose events a lake holds."""
    return "*" if scope is None else f"{scope.tenant_id}/{scope.organization_id}"


def _last_with_positions(files: LakeFiles, paths: Sequence[str]) -> int:
    """Where to begin to read manifests: the last one with positions of all, found from the end."""
    for place in range(len(paths) - 1, -1, -1):
        if Manifest.from_bytes(files.read(paths[place])).positions_file is not None:
            return place
    return 0
