"""Exports the log to a lake: resumable, and every event in exactly one file.

What is missing is cut into slices. Each is written aside, wherever its writer does that, counts with its manifest, and
is given its place afterwards: readers of the files see nothing of a batch that does not count. Whoever is stopped at
any point goes on from the last manifest; of two exporters at once one takes each manifest, and the other begins again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from noetl_core.canonical import sha256_hex
from noetl_core.errors import AlreadyExists, Corrupt, Unavailable
from noetl_core.lake.manifest import (
    MANIFESTS,
    PENDING,
    LakeFile,
    Manifest,
    Position,
    Progress,
    follow,
    never_counted,
    pending_path,
    positions_path,
)
from noetl_core.lake.slices import (
    Slice,
    VersionRange,
    WrittenSlice,
    check_joints,
    check_known,
    cut,
    missing_ranges,
    positions_after,
)
from noetl_core.ports.event_log import Scope
from noetl_core.ports.lake import LakeFiles, LakeFormat, SliceWriter
from noetl_core.ports.streams import StreamPage, Streams

OVERLAP: Final = timedelta(seconds=15)
"""Transactions last at most 5 s, so no head can hide behind this but one whose commit had to wait."""
COMPARE_ALL_EVERY: Final = timedelta(days=1)
"""A commit waits for a synchronous standby as long as that is away: no timeout ends it, so no overlap is enough."""
BATCH_EVENTS: Final = 20_000
BATCHES_BETWEEN_POSITIONS: Final = 64
_PAGE: Final = 1000


@dataclass(slots=True)
class Exported:
    """What a run did."""

    events: int = 0
    executions: int = 0
    files: int = 0
    batches: int = 0
    bytes: int = 0

    def count(self, one: Slice, manifest: Manifest) -> None:
        """One more batch."""
        self.events += one.events
        self.files += len(manifest.files)
        self.batches += 1
        self.bytes += sum(file.bytes for file in manifest.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """How far a lake has come, and what the log has beyond it."""

    progress: Progress
    ranges: Sequence[VersionRange]
    seen_at: datetime
    """Of the database, before the first head was read."""
    compared_at: datetime | None
    """The same of the last time that all heads were read."""
    log_branch: str
    """That the heads are of."""

    @property
    def events(self) -> int:
        """Of all executions."""
        return sum(one.events for one in self.ranges)


class LakeExport:
    """One lake; whose events it holds is fixed by its first batch."""

    def __init__(
        self,
        files: LakeFiles,
        format: LakeFormat,  # noqa: A002 - the format of the lake
        *,
        scope: Scope | None,
        batch_events: int = BATCH_EVENTS,
        positions_every: int = BATCHES_BETWEEN_POSITIONS,
        report: Callable[[Exported], None] = lambda done: None,
    ) -> None:
        self._files = files
        self._format = format
        self._scope = scope
        self._batch_events = batch_events
        self._positions_every = positions_every
        self._report = report

    async def look(self, streams: Streams) -> Missing:
        """Finish what a run before has left, and find what is new in the log as it is now."""
        asked = await streams.list_streams(self._scope, limit=1)
        # A lake of all tenants is one that saw all of them: a token may be bound to its own, without being asked.
        progress = self._resume(scope_name(asked.scope or self._scope))
        since = _moved_since(progress, asked)
        ranges: list[VersionRange] = []
        known: set[int] = set()
        after, more = 0, True
        while more:
            page = await streams.list_streams(self._scope, after=after, moved_since=since, limit=_PAGE)
            if page.log_branch != asked.log_branch:
                raise Unavailable("another server has the log since its heads were listed: run the export again")
            ranges += missing_ranges(page.heads, progress.positions)
            known.update(head.execution_id for head in page.heads)
            if more := page.more and bool(page.heads):
                after = page.heads[-1].execution_id
        if since is None:
            check_known(progress.positions, known)
        return Missing(
            progress=progress,
            ranges=ranges,
            seen_at=asked.now,
            compared_at=asked.now if since is None else progress.compared_at,
            log_branch=asked.log_branch,
        )

    async def run(self, missing: Missing, writer: SliceWriter) -> Exported:
        """Bring the lake up to what was seen; raises `AlreadyExists` if another export does the same.

        Slices may be written in any order, and are committed in theirs: versions of an execution never have a gap.
        """
        done = Exported(executions=len(missing.ranges))
        progress, left = missing.progress, missing.events
        slices = cut(missing.ranges, events=self._batch_events, first_batch=progress.next_batch)
        begun: deque[tuple[Slice, asyncio.Task[WrittenSlice]]] = deque()
        try:
            while left:
                while len(begun) < writer.at_once and (following := next(slices, None)) is not None:
                    begun.append((following, asyncio.create_task(writer.write(following))))
                one, task = begun.popleft()
                written = await task
                check_joints(progress.positions, one, written)
                left -= one.events
                manifest = Manifest(
                    batch=one.batch,
                    scope=progress.scope,
                    files=written.files,
                    positions=positions_after(one, written),
                    log_branch=missing.log_branch,
                    scanned_to=None if left else missing.seen_at,
                    compared_at=None if left else missing.compared_at,
                    previous_sha256=progress.last_sha256,
                )
                progress = self._commit(progress, manifest)
                done.count(one, manifest)
                self._report(done)
        finally:
            for _, task in begun:
                task.cancel()
            await asyncio.gather(*(task for _, task in begun), return_exceptions=True)
        return done

    def _resume(self, scope: str) -> Progress:
        """From the last positions that were written, and the manifests since."""
        progress = Progress(scope=scope)
        paths = self._files.list(MANIFESTS)
        last: Manifest | None = None
        for path in paths[_last_with_positions(self._files, paths) :]:
            data = self._files.read(path)
            last = Manifest.from_bytes(data)
            known = None
            if last.positions_file is not None:
                self._give_places(last)
                known = self._known_positions(last.positions_file)
            progress = follow(progress, data, known=known)
        if last is not None:
            self._give_places(last)
            self._remove_beside(last)
        return progress

    def _known_positions(self, file: LakeFile) -> dict[int, Position]:
        data = self._files.read(file.path)
        if sha256_hex(data) != file.sha256:
            raise Corrupt(f"{file.path}: its bytes are not those that were written")
        return self._format.decode_positions(data)

    def _commit(self, progress: Progress, manifest: Manifest) -> Progress:
        if manifest.batch % self._positions_every == 0:
            positions = self._format.encode_positions({**progress.positions, **manifest.positions})
            manifest = replace(manifest, positions_file=self._positions_aside(manifest.batch, positions))
        data = manifest.to_bytes()
        self._check_pending(manifest)
        try:
            self._files.create(manifest.path, data)
        except AlreadyExists:
            self._give_way(manifest)
            raise
        self._give_places(manifest)
        if manifest.scanned_to is not None:
            self._remove_beside(manifest)
        return follow(progress, data)

    def _check_pending(self, manifest: Manifest) -> None:
        """A batch must never count files that only the machine of a task can see."""
        for file in manifest.all_files:
            path = pending_path(manifest.batch, file.sha256)
            try:
                size = self._files.size(path)
            except FileNotFoundError:
                size = -1
            if size != file.bytes:
                if manifest.path in self._files.list(MANIFESTS):  # whoever was first has removed what did not count
                    raise AlreadyExists(f"another export has written {manifest.path}")
                raise Unavailable(f"{path} was written and is not here: all executors have to share the lake's place")

    def _give_way(self, ours: Manifest) -> None:
        """Another's batch has the number. Its files may be the very same ones, and may wait for their places still."""
        theirs = Manifest.from_bytes(self._files.read(ours.path))
        self._give_places(theirs)
        counted = {file.sha256 for file in theirs.all_files}
        for file in ours.all_files:
            if file.sha256 not in counted:
                self._files.remove(pending_path(ours.batch, file.sha256))

    def _remove_beside(self, last: Manifest) -> None:
        """What killed exports, lost tasks and those who came second have left of numbers that are taken.

        Numbers that are not may be another's, who is about to count these files.
        """
        unfinished = (*self._files.list_unfinished(PENDING), *self._files.list_unfinished(MANIFESTS))
        for path in never_counted((*self._files.list(PENDING), *unfinished), last):
            self._files.remove(path)

    def _positions_aside(self, batch: int, data: bytes) -> LakeFile:
        digest = sha256_hex(data)
        self._files.write(pending_path(batch, digest), data)
        return LakeFile(path=positions_path(batch, digest), rows=0, bytes=len(data), sha256=digest)

    def _give_places(self, manifest: Manifest) -> None:
        for file in manifest.all_files:
            self._files.move(pending_path(manifest.batch, file.sha256), file.path, size=file.bytes)


def scope_name(scope: Scope | None) -> str:
    """Whose events a lake holds."""
    return "*" if scope is None else f"{scope.tenant_id}/{scope.organization_id}"


def _moved_since(progress: Progress, log: StreamPage) -> datetime | None:
    """Which heads have to be looked at; None for all of them."""
    if progress.scanned_to is None or progress.compared_at is None:
        return None
    if log.log_branch != progress.log_branch:
        return None  # what the log may have lost has not moved since
    if log.now - progress.compared_at >= COMPARE_ALL_EVERY:
        return None
    return progress.scanned_to - OVERLAP


def _last_with_positions(files: LakeFiles, paths: Sequence[str]) -> int:
    """Where to begin to read manifests: the last one with positions of all, found from the end."""
    for place in range(len(paths) - 1, -1, -1):
        if Manifest.from_bytes(files.read(paths[place])).positions_file is not None:
            return place
    return 0
