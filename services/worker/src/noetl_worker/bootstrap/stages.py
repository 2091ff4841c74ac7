"""Wires the slots that a worker hands over to Spark."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from noetl_adapters.spark.payload_access import STORE_VARIABLES
from noetl_core.canonical import JsonValue
from noetl_core.errors import Unavailable
from noetl_core.playbook.loop_model import Engine
from noetl_core.ports.commands import Commands, GrantedCommand, Worker
from noetl_core.ports.frames import StageHolders
from noetl_core.ports.spark import SparkEnd, SparkFailure, SparkSessions, SparkWork
from noetl_core.stages.engines import DEFAULT
from noetl_servicekit.stage_tokens import StageScope, stage_token

from noetl_worker.application.command_end import CommandEnd, failed_result
from noetl_worker.application.slot_order import SlotOrder, variables_of_slots
from noetl_worker.application.slots import Slots
from noetl_worker.application.spark_stages import SparkStages
from noetl_worker.application.stage_jobs import StageHint
from noetl_worker.settings import Settings
from noetl_worker.telemetry import WorkerMetrics
from noetl_worker.tools.python_pool import PASSED_VARIABLES
from noetl_worker.tools.spark import SPARK_OFF

FUNCTION = "noetl_worker.bootstrap.slot_process:run_slots"
"""By name: a worker imports nothing that only its slots need."""
_LOOK_SECONDS = 1.0


class _SwitchedOff:
    """A session that is not to be had."""

    async def warm(self) -> None:
        raise Unavailable(SPARK_OFF)

    def release(self, call_id: str, shares: Sequence[JsonValue]) -> None:
        """There are no tasks."""

    async def run(self, call: SparkWork, *, began: Callable[[], None] = lambda: None) -> SparkEnd:
        return SparkEnd(failure=SparkFailure(kind="unknown", code="SPARK_UNAVAILABLE", message=SPARK_OFF))


def spark_stages(
    spark: SparkSessions,
    settings: Settings,
    *,
    worker: Worker,
    variables: Mapping[str, str],
    metrics: WorkerMetrics,
    slots: Slots,
    planned: Commands,
    holders: StageHolders,
    rates: Path,
) -> SparkStages:
    """Stages that say `engine: spark`; in a pool that keeps a session warm, those that say nothing too."""
    is_local = (settings.spark.master or "local").startswith("local")
    passed = variables_of_slots(variables, (*STORE_VARIABLES, *PASSED_VARIABLES))

    def order(hint: StageHint, name: str, slice_seconds: float) -> SlotOrder:
        token_seconds = settings.spark_token_seconds
        token_until = time.time() + token_seconds
        scope = StageScope(tenant_id=hint.tenant_id, organization_id=hint.organization_id, stage_id=hint.stage_id)
        return SlotOrder(
            execution_id=hint.execution_id,
            stage_id=hint.stage_id,
            owner=f"{worker.worker_id}.{name}",
            pool=worker.pool,
            # Executors elsewhere are not where this worker is.
            locator=worker.locator if is_local else "",
            driver_host="" if is_local else socket.gethostname(),
            max_distance=worker.locality.max_distance.value,
            rates=str(rates) if is_local else "",
            slice_seconds=slice_seconds,
            token=stage_token(settings.token, scope, until=token_until, seconds=token_seconds),
            token_seconds=token_seconds,
            token_until=token_until,
            variables=passed,
        )

    async def otherwise(hints: Sequence[StageHint], message: str) -> None:
        """Whoever has not asked for Spark gets on without it; the others are told why there is none."""
        keys = [hint.key for hint in hints]
        if hints[0].engine != Engine.SPARK:
            await slots.claim(keys)
            return

        async def refuse(command: GrantedCommand) -> CommandEnd:
            return CommandEnd(result=failed_result(Unavailable(message), retryable=True))

        refusing = Slots(planned, refuse, worker=worker, size=len(keys), metrics=metrics)
        await refusing.claim(keys)
        while refusing.busy:
            await refusing.wait_for_change(_LOOK_SECONDS)

    engines = {Engine.SPARK.value, DEFAULT} if settings.spark_enabled and settings.spark_warm else {Engine.SPARK.value}
    return SparkStages(
        spark if settings.spark_enabled else _SwitchedOff(),
        function=FUNCTION,
        order=order,
        otherwise=otherwise,
        holders=lambda hint: holders.holders_of(hint.execution_id, hint.stage_id),
        engines=frozenset(engines),
        capacity=settings.spark_slots,
        metrics=metrics,
    )
