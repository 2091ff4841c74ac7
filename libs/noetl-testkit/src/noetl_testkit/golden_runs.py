"""Runs for the golden corpus that no conformance case can make: ends that somebody forces, and work that gets lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from noetl_adapters.arrow.ipc import ArrowTables
from noetl_api.application.commit_signal import CommitSignal
from noetl_api.application.failed_rows import FailedRowsOf
from noetl_api.application.finalize_execution import FinalizeExecution
from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.application.redrive_execution import RedriveExecution, RedriveRequest
from noetl_api.application.steer_execution import SteerExecution
from noetl_api.telemetry import ApiMetrics
from noetl_core.append import AppendRequest, StreamAppend
from noetl_core.envelope import Draft, StoredEvent
from noetl_core.executions.events import ExecutionRetired
from noetl_core.executions.state import ExecutionStatus
from noetl_core.ports.commands import ToldChunk
from noetl_core.ports.steering import SteerAction
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.failed_rows import FailedRows
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.stored_values import StoredValues

from noetl_testkit.collecting import Collecting, TurnedClock
from noetl_testkit.memory.no_projections import NoProjections
from noetl_testkit.planning import NOON, WORKER, Planning, ok
from noetl_testkit.simulation.faults import Fault, Kind
from noetl_testkit.simulation.playbooks import HAND_WRITTEN
from noetl_testkit.simulation.verdict import quiet
from noetl_testkit.simulation.world import Script, World
from noetl_testkit.until import until

SEED: Final = 4
_ADA = Caller(name="ada", tenant_id="t", organization_id="o", role=Role.WRITER)
_LINE = """
workflow:
- {step: a, tool: {kind: noop}, set: {ctx.n: "{{ output.data.n }}"}, next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop}}
"""
_STREAM = """
workflow:
- step: read
  tool: {kind: postgres, command: select 1, spec: {stream: {chunk_rows: 1}}}
  next: {arcs: [{step: take, on: call.partial}]}
- {step: take, tool: {kind: noop}}
"""
_FAILED = {
    "status": "error",
    "reference": None,
    "parent_ref": None,
    "context": {"error": {"kind": "unknown", "code": "X", "message": "no"}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRun:
    """How a history is made, how it ends, and the types of events that it is in the corpus for."""

    make: Callable[[], list[StoredEvent]]
    status: ExecutionStatus
    types: tuple[str, ...]


def _simulated(
    case: str, *, mind: str = "", faults: Iterable[Fault] = (), which: int = 0
) -> Callable[[], list[StoredEvent]]:
    """One of the executions of a simulated installation, in the order of their ids."""

    def make() -> list[StoredEvent]:
        (chosen,) = (one for one in HAND_WRITTEN if one.name == case)
        script = Script(seed=SEED, case=chosen, minds=(mind,), replicas=(1, 1, 1, 1), faults=tuple(faults))
        with quiet():
            world = World(script).run()
            world.close()
        return list(sorted(world.log.streams.items())[which][1].events)

    return make


def _planned(live: Callable[[Planning], Awaitable[None]]) -> Callable[[], list[StoredEvent]]:
    """An execution with a planner over twins, whose worker and user `live` is."""

    async def run() -> list[StoredEvent]:
        planning = Planning()
        with quiet():
            try:
                await live(planning)
            finally:
                await planning.actors.stop()
        return list(planning.log.streams[planning.execution_id].events)

    return lambda: asyncio.run(run())


async def _pause(planning: Planning) -> None:
    await planning.start(_LINE)
    running = await planning.claim("a")
    planning.pass_time(1)
    steer = SteerExecution(planning.log, planning.log, planning.actors)
    await steer(_ADA, None, planning.execution_id, SteerAction.PAUSE, reason="lunch")
    planning.pass_time(1)
    await planning.complete(running, ok(n=7))  # what follows from it is held back


async def _finalize(planning: Planning) -> None:
    await planning.start(_LINE)
    await planning.claim("a")
    planning.pass_time(1)
    await FinalizeExecution(planning.log)(_ADA, None, planning.execution_id, status="FAILED", reason="by hand")
    planning.pass_time(1)
    await planning.append(ExecutionRetired(manifest="2026/01/01.parquet"), key="execution/retired")


async def _redrive(planning: Planning) -> None:
    await planning.start(_LINE)
    await planning.run("a", ok(n=7))
    await planning.run("b", _FAILED)
    planning.pass_time(60)
    log, metrics = planning.log, ApiMetrics(MetricSet())
    failed_rows = FailedRows(log, StoredValues(planning.payloads, ArrowTables()))
    redrive = RedriveExecution(
        log=log,
        executions=QueryExecutions(projections=NoProjections(), log=log, signal=CommitSignal(), metrics=metrics),
        catalog=planning.catalog,
        parsed=ParsedPlaybooks(),
        payloads=planning.payloads,
        failed_rows=FailedRowsOf(failed_rows, payloads=planning.payloads),
        next_id=log.next_id,
        metrics=metrics,
    )
    redriven = await redrive(_ADA, None, RedriveRequest(execution_id=planning.execution_id, reason="mended"))
    planning.execution_id = redriven.execution_id
    await until(lambda: len(planning.events()) > 1)
    await planning.run("b")


async def _stream(planning: Planning) -> None:
    await planning.start(_STREAM)
    reading = await planning.claim("read")
    for index, data in enumerate((b"[1]", b"[2]")):
        rows = await planning.payloads.put(tenant_id="t", organization_id="o", data=data, media_type="application/json")
        chunk = ToldChunk(task="read", call=0, chunk_index=index, row_count=1, has_more=index < 1, rows=rows)
        planning.pass_time(1)
        await planning.actors.tell_chunk(WORKER, reading.key, chunk)
    for _ in range(2):
        await planning.run("take")
    planning.pass_time(1)
    await planning.complete(reading)


async def _tell_of_objects(planning: Planning) -> None:
    """A cart becomes an order, which becomes an invoice and is deleted at the end."""
    said: list[Mapping[str, Any]] = [
        {"type": "cart", "id": "9", "state": {"lines": [{"sku": "a/ü", "count": 2}]}, "status": "open"},
        {"type": "order", "id": "7", "state": {"total": 2.5}, "derived_from": [{"type": "cart", "id": "9"}]},
        {"type": "order", "id": "7", "patch": {"total": None, "by": {"name": "é"}}, "status": "shipped"},
        {
            "type": "invoice",
            "id": "7/1",
            "state": {"sum": 1e22},
            "derived_from": [{"type": "order", "id": "7"}, {"type": "cart", "id": "9"}],
        },
        {"type": "order", "id": "7", "deleted": True},
    ]
    await planning.start(_LINE)
    await planning.run("a", ok(n=7))
    for place, one in enumerate(said):
        planning.pass_time(1)
        draft = Draft(event_type="order.told", idempotency_key=f"told/{place}", meta={"business_object": dict(one)})
        stream = StreamAppend(execution_id=planning.execution_id, drafts=(draft,))
        await planning.log.append(AppendRequest(tenant_id="t", organization_id="o", streams=(stream,)))
    await planning.run("b")


class _Noon(TurnedClock):
    """Stands still unless it is turned."""

    def __call__(self) -> datetime:
        return NOON + self.ahead


async def _collect() -> list[StoredEvent]:
    collecting = Collecting(clock=_Noon())
    await collecting.tell(await collecting.put(b"kept"))
    await collecting.put(b"garbage")
    with quiet():
        for _ in range(3):
            collecting.wait()
            report = await collecting.run()
    (collection,) = report.collections
    return list(collecting.log.streams[int(collection)].events)


_STOPPED = Fault(Kind.STOP, 240, 14.0, "worker-0")
RUNS: Final[Mapping[str, GoldenRun]] = {
    "ends_failed": GoldenRun(
        make=_simulated("errors"),
        status=ExecutionStatus.FAILED,
        types=("workflow.failed", "playbook.failed", "call.error", "command.heartbeat"),
    ),
    "ends_failed_by_its_deadline": GoldenRun(
        make=_simulated("too_late", faults=[_STOPPED]),
        status=ExecutionStatus.FAILED,
        types=("deadline.passed", "playbook.failed"),
    ),
    "ends_cancelled_with_its_children": GoldenRun(
        make=_simulated("family", mind="cancel@0.9"),
        status=ExecutionStatus.CANCELLED,
        types=("execution.cancelled", "execution.cascaded", "child.started"),
    ),
    "ends_cancelled_with_its_parent": GoldenRun(
        make=_simulated("family", mind="cancel@0.9", which=3),
        status=ExecutionStatus.CANCELLED,
        types=("execution.cancelled",),
    ),
    "ends_finalized_and_is_retired": GoldenRun(
        make=_planned(_finalize),
        status=ExecutionStatus.FAILED,
        types=("workflow.failed", "playbook.failed", "execution.retired"),
    ),
    "stays_paused": GoldenRun(make=_planned(_pause), status=ExecutionStatus.PAUSED, types=("execution.paused",)),
    "paused_and_resumed": GoldenRun(
        make=_simulated("chain", mind="pause@0.2"),
        status=ExecutionStatus.COMPLETED,
        types=("execution.paused", "execution.resumed"),
    ),
    "steps_out_of_time": GoldenRun(
        make=_simulated("late"),
        status=ExecutionStatus.COMPLETED,
        types=("deadline.passed", "command.heartbeat"),
    ),
    "joined_across_a_checkpoint": GoldenRun(
        make=_simulated("join"), status=ExecutionStatus.COMPLETED, types=("checkpoint.committed",)
    ),
    "command_of_a_lost_worker": GoldenRun(
        make=_simulated("chain", faults=[_STOPPED]), status=ExecutionStatus.COMPLETED, types=("command.abandoned",)
    ),
    "redriven_from_a_failure": GoldenRun(
        make=_planned(_redrive), status=ExecutionStatus.COMPLETED, types=("execution.inherited",)
    ),
    "chunks_of_a_call": GoldenRun(
        make=_planned(_stream), status=ExecutionStatus.COMPLETED, types=("call.partial", "step.chunk")
    ),
    "objects_derived_and_deleted": GoldenRun(
        make=_planned(_tell_of_objects), status=ExecutionStatus.COMPLETED, types=("order.told",)
    ),
    "payloads_collected": GoldenRun(
        make=lambda: asyncio.run(_collect()),
        status=ExecutionStatus.COMPLETED,
        types=("payload.marked", "payload.withdrawn", "payload.swept"),
    ),
}
"""By the names that their histories have in the corpus."""
