"""How one execution bears what goes wrong: what passes by itself is waited for, what does not sets it aside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from noetl_contracts.room import asked_to_wait
from noetl_core.errors import NoetlError

RETRY_SECONDS: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
FAILURE_SECONDS: Final = (1.0, 10.0)
"""Pauses before another try at an execution that failed for no reason that is known to pass."""
QUARANTINE_SECONDS: Final = 300.0


class Setbacks:
    """Counts them; one turn that ends well makes up for all."""

    def __init__(self, *, retry_seconds: Sequence[float], failure_seconds: Sequence[float]) -> None:
        self._retry_seconds = tuple(retry_seconds)
        self._failure_seconds = tuple(failure_seconds)
        self._outages = 0
        self._quarantined_until = 0.0
        self.failures = 0
        self.quarantined = ""
        """Why the execution is set aside, if it is."""

    def make_up(self) -> None:
        """A turn has ended well."""
        self.failures = self._outages = 0

    async def outlast(self, outage: NoetlError) -> None:
        """Wait, longer each time, and as long as whoever refused has asked for."""
        await _pause(self._retry_seconds, self._outages, at_least=asked_to_wait(outage))
        self._outages += 1

    def bear(self, failure: Exception) -> bool:
        """Whether there is to be another try; if not, the execution is set aside."""
        self.failures += 1
        if self.failures <= len(self._failure_seconds):
            return True
        self.quarantined = f"{type(failure).__name__}: {failure}"
        self._quarantined_until = asyncio.get_running_loop().time() + QUARANTINE_SECONDS
        return False

    async def pause(self) -> None:
        """Before the next try after a failure."""
        await _pause(self._failure_seconds, self.failures - 1)

    def forgive_if_due(self) -> bool:
        """Whether an execution that was set aside gets another chance: what was wrong may have been mended."""
        if not self.quarantined or asyncio.get_running_loop().time() < self._quarantined_until:
            return False
        self.quarantined = ""
        self.failures = 0
        return True


async def _pause(seconds: Sequence[float], times: int, *, at_least: float = 0.0) -> None:
    await asyncio.sleep(max(seconds[min(times, len(seconds) - 1)], at_least))
