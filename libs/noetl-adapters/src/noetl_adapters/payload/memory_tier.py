"""The nearest tier: payloads in the memory of this process, the least recently used ones leave first."""

from collections import OrderedDict

from noetl_core.payloads import PayloadPart, PayloadRef

from noetl_adapters.payload.tiers import TOO_LARGE, Miss, TierReports

MEMORY = "memory"
LARGEST_SHARE = 4
"""One payload gets a quarter of the budget at most, or a single one would push everything else out."""


class MemoryTier:
    """Only verified bytes get in, and bytes do not change in here."""

    name = MEMORY
    verified = True
    is_memory = True

    def __init__(self, *, budget_bytes: int, reports: TierReports) -> None:
        self._budget_bytes = budget_bytes
        self._reports = reports
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    async def load(self, ref: PayloadRef) -> bytes | Miss:
        """The bytes, which are in use again."""
        data = self._kept.get(ref.uri)
        if data is None:
            return Miss.ABSENT
        self._kept.move_to_end(ref.uri)
        return data

    async def load_part(self, ref: PayloadRef, part: PayloadPart) -> bytes | memoryview | Miss:
        """Some of the bytes, which are in use again."""
        data = await self.load(ref)
        return data if isinstance(data, Miss) else memoryview(data)[part.start : part.stop]

    async def keep(self, ref: PayloadRef, data: bytes, *, produced: bool) -> None:
        """Keep the bytes, and let go of others until all fit."""
        if len(data) > self._budget_bytes // LARGEST_SHARE:
            self._reports.refused(self.name, TOO_LARGE)
            return
        self._drop(ref.uri)
        self._kept[ref.uri] = data
        self._size += len(data)
        while self._size > self._budget_bytes:
            self._drop(next(iter(self._kept)))
        self._reports.holds(self.name, self._size)

    async def forget(self, ref: PayloadRef) -> None:
        """Let go of the bytes."""
        self._drop(ref.uri)
        self._reports.holds(self.name, self._size)

    def _drop(self, uri: str) -> None:
        self._size -= len(self._kept.pop(uri, b""))
