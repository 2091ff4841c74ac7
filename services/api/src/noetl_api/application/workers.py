"""Who works here: workers report, everybody may look."""

from __future__ import annotations

from collections.abc import Sequence

from noetl_core.ports.workers import PresentWorker, WorkerPresence, WorkerReport
from noetl_servicekit.callers import Caller, Role


class Workers:
    """Workers belong to the installation, not to a tenant; who only reads sees that they are there."""

    def __init__(self, presence: WorkerPresence) -> None:
        self._presence = presence

    async def report(self, caller: Caller, report: WorkerReport, *, lease_seconds: float) -> None:
        """This worker is there."""
        caller.require(Role.SERVICE)
        await self._presence.report(report, lease_seconds=lease_seconds)

    async def leave(self, caller: Caller, worker_id: str) -> None:
        """This one is there no longer."""
        caller.require(Role.SERVICE)
        await self._presence.leave(worker_id)

    async def list(self, caller: Caller, *, pool: str = "") -> Sequence[PresentWorker]:
        """Those who are there."""
        caller.require(Role.READER)
        return await self._presence.list(pool=pool)
