"""Tables in the shared memory of a node: one process writes them, all of them read them where they are."""

from __future__ import annotations

import asyncio
import mmap
import os
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from noetl_core.errors import Corrupt
from noetl_core.payload_hints import IpcHint
from noetl_core.payloads import PayloadPart, PayloadRef
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from noetl_core.ports.tables import is_table

from noetl_adapters.arrow.ipc import schema_digest
from noetl_adapters.payload.memory_room import room_bytes
from noetl_adapters.payload.shm_account import SECOND_NS, SegmentAccount
from noetl_adapters.payload.shm_directory import Entry, NewSegment, NodeDirectory
from noetl_adapters.payload.shm_segment import DATA_OFFSET, Machine, Segment, machine_digests, read_segment
from noetl_adapters.payload.tiers import FAILED, TOO_LARGE, Miss, TierReports, copy_name

SHARED_MEMORY: Final = "shared_memory"
LARGEST_SHARE: Final = 4
"""One payload gets a quarter of the budget at most."""
MIN_BYTES: Final = 16 * 1024
"""Less is not worth a file."""

BUSY: Final = "busy"
FULL: Final = "full"
NO_ROOM: Final = "no_room"
NOT_A_TABLE: Final = "not_a_table"

_COMPARED: Final = 4096


class SharedMemoryTier:
    """Copies that were compared with their digest by whoever wrote them; a file is whole, read-only, or not there.

    What was produced here is leased: until then nothing pushes it out. What was read has no lease, and gives way to
    anything. Both stay for a grace period after that, which every use begins anew.
    """

    name = SHARED_MEMORY
    verified = True
    is_memory = True

    def __init__(
        self,
        node: NodeDirectory,
        machine: Machine,
        *,
        budget_bytes: int,
        lease_seconds: float,
        grace_seconds: float,
        reports: TierReports,
        warn: Callable[[str], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        room: Callable[[int], int] = room_bytes,
    ) -> None:
        self._node = node
        self._machine = machine
        self._budget_bytes = budget_bytes
        self._account = SegmentAccount(node, budget_bytes=budget_bytes, grace_seconds=grace_seconds, clock_ns=clock_ns)
        self._lease_ns = int(lease_seconds * SECOND_NS)
        self._promised = timedelta(seconds=lease_seconds + grace_seconds)
        """How long after it was produced a copy is there, if nobody needs its room."""
        self._now = now
        self._reports = reports
        self._warn: Callable[[str], None] | None = warn
        self._clock_ns = clock_ns
        self._room = room
        self._compared: OrderedDict[int, None] = OrderedDict()
        """Generations whose bytes this process has seen to be right."""
        self._in_use = threading.Lock()
        """Held by threads that work in the directory, so that it is not closed under them."""
        self._is_closed = False

    async def load(self, ref: PayloadRef) -> memoryview | Miss | None:
        """The bytes where they are; they stay readable for who has them, whatever happens to the file."""
        if self._is_closed:
            return None
        name = copy_name(ref)
        found = self._attach(ref, name)
        if not isinstance(found, tuple):
            return found
        segment, data = found
        if segment.generation not in self._compared:
            if await asyncio.to_thread(zlib.crc32, data) != segment.crc32:
                await self.forget(ref)
                return Miss.CORRUPT
            self._remember(segment.generation)
        return data

    async def load_part(self, ref: PayloadRef, part: PayloadPart) -> memoryview | Miss | None:
        """Some bytes where they are; the others are not even looked at."""
        found = None if self._is_closed else self._attach(ref, copy_name(ref))
        return found[1][part.start : part.stop] if isinstance(found, tuple) else found

    async def keep(self, ref: PayloadRef, data: bytes, *, produced: bool) -> IpcHint | None:
        """Tables only; never by pushing out what is leased, and never with the last memory of the machine."""
        if len(data) < MIN_BYTES or not is_table(data) or self._is_closed:
            return None
        try:
            outcome = await asyncio.to_thread(self._keep, ref, data, produced)
        except TimeoutError:
            outcome = BUSY
        except Corrupt:
            outcome = NOT_A_TABLE
        except OSError as exc:
            outcome = FAILED
            self._warn_once(exc)
        if isinstance(outcome, IpcHint):
            return outcome if produced else None
        self._reports.refused(self.name, outcome)
        return None

    async def forget(self, ref: PayloadRef) -> None:
        """Others that are reading it go on."""
        if not self._is_closed:
            self._node.remove(copy_name(ref))

    async def sweep(self, *, thoroughly: bool = False) -> None:
        """Remove what nobody uses any more; thoroughly, also what cannot be read."""
        with suppress(OSError):  # the next one does it
            await asyncio.to_thread(self._sweep, thoroughly)

    async def close(self) -> None:
        """The last process of the node takes everything away."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._close)

    def _attach(self, ref: PayloadRef, name: str) -> tuple[Segment, memoryview] | Miss | None:
        if ref.hint is not None and ref.hint.valid_until <= self._now():
            return Miss.STALE  # nobody promises it any more, and a look costs more than the miss
        try:
            file = self._node.open_file(name)
        except OSError:
            return self._absence(ref)
        try:
            status, start = os.fstat(file), os.pread(file, DATA_OFFSET, 0)
            found = read_segment(start, file_bytes=status.st_size, machine=self._machine, expected_sha256=ref.sha256)
            if isinstance(found, Segment) and self._account.is_over(status.st_mtime_ns):
                found = Miss.STALE
            if isinstance(found, Miss):
                if found is not Miss.FOREIGN:
                    self._node.remove(name)
                return found
            if ref.hint is not None and ref.hint.schema_digest != found.schema_digest:
                return Miss.CORRUPT  # the hint is; whoever reads without it may be right
            memory = mmap.mmap(file, found.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            return Miss.ABSENT
        finally:
            os.close(file)
        now = self._clock_ns()
        if status.st_mtime_ns < now:
            self._node.set_lease(name, now)
        return found, memoryview(memory)[DATA_OFFSET:]

    def _absence(self, ref: PayloadRef) -> Miss | None:
        if ref.hint is not None:
            return Miss.STALE if ref.hint.node_id == self._machine.node_id else Miss.FOREIGN
        return Miss.ABSENT if ref.media_type == TABLE_MEDIA_TYPE and ref.bytes >= MIN_BYTES else None

    def _keep(self, ref: PayloadRef, data: bytes, produced: bool) -> IpcHint | str:
        name, size, schema = copy_name(ref), DATA_OFFSET + len(data), schema_digest(data)
        if size > self._budget_bytes // LARGEST_SHARE:
            return TOO_LARGE
        with self._in_use:
            if self._is_closed:
                return FAILED
            end_ns = self._clock_ns() + (self._lease_ns if produced else 0)
            with self._node.alone():
                reserved = self._reserve(name, size, end_ns)
            if isinstance(reserved, str):
                return reserved
            if reserved is not None:
                self._fill(reserved, name, self._segment(ref, data, schema), data, end_ns)
        return self._hint(name, schema)

    def _reserve(self, name: str, size: int, end_ns: int) -> NewSegment | str | None:
        """Room for a new segment, or why there is none; None if it is there already."""
        entries = self._account.tidied()
        present = next((entry for entry in entries if entry.name == name), None)
        if present is not None:
            self._node.set_lease(name, max(end_ns, present.lease_end_ns))
            return None
        if size > self._room(self._node.descriptor):
            return NO_ROOM
        held = self._account.make_room(entries, size)
        if held is None:
            return FULL
        self._reports.holds(self.name, held)
        return NewSegment(self._node, size)

    def _fill(self, new: NewSegment, name: str, segment: Segment, data: bytes, end_ns: int) -> None:
        try:
            new.fill(start=segment.to_bytes(), data=data, data_offset=DATA_OFFSET)
            with self._node.alone():  # whoever counts must not miss it between its names
                new.publish(name, lease_end_ns=end_ns)
        finally:
            new.discard()
        self._remember(segment.generation)

    def _segment(self, ref: PayloadRef, data: bytes, schema: str) -> Segment:
        return Segment(
            length=len(data),
            sha256=ref.sha256,
            schema_digest=schema,
            machine_digests=machine_digests(self._machine),
            generation=secrets.randbits(64),
            crc32=zlib.crc32(data),
        )

    def _sweep(self, thoroughly: bool) -> None:
        with self._in_use:
            if self._is_closed:
                return
            with self._node.alone():
                left = self._account.tidied()
                if thoroughly:
                    left = [entry for entry in left if entry.is_temporary or self._is_sound(entry)]
                self._reports.holds(self.name, sum(entry.size for entry in left))

    def _is_sound(self, entry: Entry) -> bool:
        try:
            file = self._node.open_file(entry.name)
        except OSError:
            return False
        try:
            start = os.pread(file, DATA_OFFSET, 0)
        finally:
            os.close(file)
        found = read_segment(start, file_bytes=entry.size, machine=self._machine, expected_sha256=None)
        if isinstance(found, Segment) or found is Miss.FOREIGN:  # that of another node is not ours to remove
            return True
        self._node.remove(entry.name)
        return False

    def _close(self) -> None:
        with self._in_use:
            self._node.close()

    def _hint(self, name: str, schema: str) -> IpcHint:
        return IpcHint(
            node_id=self._machine.node_id,
            shm_name=f"{self._node.path.name}/{name}",
            schema_digest=schema,
            valid_until=self._now() + self._promised,
        )

    def _remember(self, generation: int) -> None:
        self._compared[generation] = None
        while len(self._compared) > _COMPARED:
            with suppress(KeyError):
                self._compared.popitem(last=False)

    def _warn_once(self, exc: OSError) -> None:
        warn, self._warn = self._warn, None
        if warn is not None:
            warn(exc.strerror or type(exc).__name__)
