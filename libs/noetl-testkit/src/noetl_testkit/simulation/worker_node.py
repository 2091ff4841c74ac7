"""The wiring of a worker, as its bootstrap does it; calls of its tool take virtual time and fail as they are told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from noetl_adapters.arrow.ipc import ArrowTables
from noetl_contracts.subjects import CANCEL_SUBJECT, STOP_SUBJECT, work_subject
from noetl_core.ports.commands import CommandKey, Worker
from noetl_servicekit.chunk_rows import LoadRows
from noetl_servicekit.loop_results import LoopResults
from noetl_worker.application.child_calls import ChildCalls
from noetl_worker.application.frame_work import WorkOfPlanners
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit
from noetl_worker.application.pipeline import Pipeline
from noetl_worker.application.rate_limits import RateLimits
from noetl_worker.application.run_command import RunCommand
from noetl_worker.application.slots import Slots
from noetl_worker.application.stage_jobs import StageHint
from noetl_worker.application.step_names import StepNames
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.application.wait_at_planners import WaitAtPlanners
from noetl_worker.application.waiting_retries import WaitingRetries
from noetl_worker.entrypoints.work_loop import keep_alive, on_cancelled, on_stopped, pull_work
from noetl_worker.tools.noop import NoopTool
from noetl_worker.tools.registry import ToolRegistry

from noetl_testkit.simulation.clients import PlannerRoute
from noetl_testkit.simulation.network import Node
from noetl_testkit.simulation.nodes import BEAT_SECONDS, MIDNIGHT, SHARDS, Installation, KnownPlaybooks, metrics

SLOTS = 2
_TABLES = ArrowTables()


class SimulatedTool:
    """Stands in the place of `python`: inputs say how long a call takes, how often it fails, and what it gives."""

    def __init__(self, effects: Counter[str]) -> None:
        self._effects = effects
        """What calls have done to the world, by their keys: at least once, since a call may be repeated."""

    async def run(self, call: ToolCall) -> Outcome:
        """Sleep, then fail or succeed."""
        given = call.rendered_input()
        await asyncio.sleep(float(given.get("seconds") or 0.0))  # type: ignore[arg-type]
        self._effects[str(call.names.get("idempotency_key"))] += 1
        if call.attempt <= int(given.get("fails") or 0):  # type: ignore[arg-type]
            return Outcome.failed(kind=ErrorKind.SERVER_ERROR, code="SIM_FAILED", message="as it was told to")
        return Outcome(data=given.get("gives"))


class EffectsOf:
    """Where the tools of one history leave what they did."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()


class _NoSpark:
    """In the place of the stages that a worker has on Spark: all run inline here."""

    def takes(self, hint: StageHint) -> bool:
        """None."""
        return False

    def take(self, hints: Sequence[StageHint]) -> frozenset[CommandKey]:
        """There are none to refuse."""
        return frozenset()


async def start_worker(place: Installation, node: Node, effects: EffectsOf) -> None:
    """One worker with a few slots."""
    clock: Callable[[], float] = place.loop.time
    payloads, api = place.database("payloads"), place.api("api", by=node)
    planners: Any = PlannerRoute(place.network, place.planners, shard_count=SHARDS)
    rows = LoadRows(payloads, _TABLES)
    loops = LoopResults(api, rows.values)
    tools = ToolRegistry({"noop": NoopTool(), "python": SimulatedTool(effects.counts)}, clock=clock)
    pipeline = Pipeline(
        tools,
        chance=place.chance.random,
        clock=lambda: MIDNIGHT.timestamp() + clock(),
        stopwatch=clock,
        children=ChildCalls(api, rows.values, loops=loops),
        limits=RateLimits(clock=clock),
        retries=WaitingRetries(now=place.now),
    )
    worker = Worker(worker_id=node.name)
    slots = Slots(
        WorkOfPlanners(planners, planners),
        RunCommand(
            playbooks=KnownPlaybooks(place.catalog),
            names=StepNames(rows, loops),
            pipeline=pipeline,
            persist=PersistBeforeEmit(payloads, _TABLES, clock=clock),
            payloads=payloads,
            rows=rows,
            loops=loops,
            clock=clock,
        ),
        worker=worker,
        size=SLOTS,
        metrics=metrics().worker,
        clock=clock,
    )
    place.bus.listen(node.name, [(CANCEL_SUBJECT, on_cancelled(slots)), (STOP_SUBJECT, on_stopped(slots))])
    no_spark: Any = _NoSpark()
    consumer = place.bus.consumer("workers", [work_subject(pool="default", kind="command")])
    waiting = WaitAtPlanners(
        planners,
        slots,
        worker=worker,
        addresses=planners.addresses,
        every_seconds=BEAT_SECONDS,
        clock=clock,
    )
    await place.supervise(
        heartbeat=lambda beat: keep_alive(slots, every_seconds=BEAT_SECONDS, beat=beat),
        work=lambda beat: pull_work(consumer, slots, no_spark, beat=beat),
        waiting=waiting.run,
    )
