"""Has commands whose worker fell silent given up; the log refuses whatever the list of candidates got wrong."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from noetl_core.append import Fence
from noetl_core.errors import AlreadyExists, Conflict, NoetlError, NotFound, Rejected
from noetl_core.ports.commands import CommandKey, Commands
from noetl_core.ports.projections import Projections, SilentCommand
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import span

from noetl_reaper.application.election import Election
from noetl_reaper.telemetry import ReaperMetrics

logger = get_logger()

PAGE: Final = 1000

REFUSALS: Final = (Conflict, Rejected, AlreadyExists, NotFound)
"""Somebody was heard of, was first, or the end has come: all of it as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What one look led to."""

    found: int
    abandoned: int
    refused: int
    failed: int


class ReclaimCommands:
    """Has the log give up attempts: each ends once, under a guard, and only while this reaper is elected."""

    def __init__(
        self,
        projections: Projections,
        commands: Commands,
        *,
        election: Election,
        reclaimer: str,
        concurrency: int,
        metrics: ReaperMetrics,
    ) -> None:
        self._projections = projections
        self._commands = commands
        self._election = election
        self._reclaimer = reclaimer
        self._slots = asyncio.Semaphore(concurrency)
        self._metrics = metrics

    async def __call__(self, fence: Fence) -> Sweep:
        """Look once, and deal with everything that is silent; raises when nobody can say what is."""
        began_at = time.perf_counter()
        outcomes: Counter[str] = Counter()
        found, token = 0, ""
        while True:  # Page by page: those that are refused again and again must not hide the ones behind them.
            page = await self._projections.silent_commands(limit=PAGE, page_token=token)
            found += len(page.commands)
            outcomes.update(await asyncio.gather(*(self._reclaim(command, fence) for command in page.commands)))
            token = page.next_page_token
            if not token or outcomes["deposed"]:
                break
        self._metrics.silent.set(found)
        self._metrics.sweeps.inc()
        self._metrics.sweep_seconds.observe(time.perf_counter() - began_at)
        return Sweep(
            found=found,
            abandoned=outcomes["abandoned"],
            refused=outcomes["refused"] + outcomes["deposed"],
            failed=outcomes["failed"],
        )

    async def _reclaim(self, command: SilentCommand, fence: Fence) -> str:
        async with self._slots:
            with span(
                "reaper.abandon",
                parent=command.trace or None,
                attributes={
                    "noetl.execution_id": str(command.execution_id),
                    "noetl.command_id": command.command_id,
                    "noetl.attempt": command.attempt,
                },
            ):
                try:
                    return await self._abandon(command, fence)
                except REFUSALS as exc:
                    self._metrics.refused.labels(exc.code).inc()
                    logger.debug("reaper.refused", **_facts(command), code=exc.code, reason=exc.message)
                    return "deposed" if self._election.ended_by(exc) else "refused"
                except NoetlError as exc:
                    self._metrics.failures.labels(exc.code).inc()
                    logger.warning("reaper.failed", **_facts(command), code=exc.code, reason=exc.message)
                    return "failed"

    async def _abandon(self, command: SilentCommand, fence: Fence) -> str:
        abandonment = await self._commands.abandon(
            CommandKey(execution_id=command.execution_id, command_id=command.command_id),
            expected_aggregate_version=command.aggregate_version,
            lease_until=command.lease_until,
            reclaimer=self._reclaimer,
            fence=fence,
        )
        self._metrics.abandoned.labels("issued_again" if abandonment.next_attempt else "exhausted").inc()
        logger.info("reaper.abandoned", **_facts(command), next_attempt=abandonment.next_attempt)
        return "abandoned"


def _facts(command: SilentCommand) -> dict[str, object]:
    return {
        "execution_id": str(command.execution_id),
        "command_id": command.command_id,
        "step": command.step,
        "attempt": command.attempt,
        "worker_id": command.worker_id,
    }
