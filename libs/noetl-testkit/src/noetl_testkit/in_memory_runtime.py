"""A runtime without any I/O: the planner's own turn and `decide`, the worker's own pipeline, twins for the rest."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from noetl_adapters.arrow.ipc import ArrowTables
from noetl_api.application.playbooks import ParsedPlaybooks
from noetl_api.application.start_execution import Started, StartExecution, StartRequest
from noetl_api.telemetry import ApiMetrics
from noetl_core.append import Fence, PlacedEvent
from noetl_core.canonical import decode
from noetl_core.causes import is_cause
from noetl_core.children.state import StartingCall
from noetl_core.errors import PlaybookInvalid
from noetl_core.execution_view import execution_view
from noetl_core.executions.decide import decide
from noetl_core.executions.plan import Plan
from noetl_core.fold import empty, fold, fold_all
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.plain import plain
from noetl_core.ports.commands import CommandKey, GrantedCommand, Worker
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionView
from noetl_core.recorded import Recorded, record
from noetl_core.stages.events import FrameDispatched, FrameStarted
from noetl_core.stages.shard_events import ShardEnqueued
from noetl_planner.application.actor import Actor
from noetl_planner.application.actors import Actors
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.turn_parts import TurnRules
from noetl_planner.telemetry import PlannerMetrics
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.chunk_rows import LoadRows
from noetl_servicekit.loop_results import LoopResults, is_loop_reference
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks
from noetl_worker.application.child_calls import ChildCalls
from noetl_worker.application.command_end import CommandPark
from noetl_worker.application.frame_work import WorkOfPlanners, slot_key
from noetl_worker.application.outcome import Printed
from noetl_worker.application.persist_before_emit import PersistBeforeEmit
from noetl_worker.application.pipeline import Pipeline
from noetl_worker.application.run_command import RunCommand
from noetl_worker.application.step_names import StepNames
from noetl_worker.tools.noop import NoopTool
from noetl_worker.tools.python import PythonTool
from noetl_worker.tools.python_call import Answer, Answered, CallEnd
from noetl_worker.tools.python_child import answer
from noetl_worker.tools.python_pool import Owner, PythonCode
from noetl_worker.tools.python_protocol import Request
from noetl_worker.tools.registry import ToolRegistry

from noetl_testkit.conformance import Came, Case
from noetl_testkit.memory.catalog import InMemoryCatalog
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.until import until

SCOPE = Scope(tenant_id="t", organization_id="o")
SOMEBODY = Caller(name="somebody", tenant_id="t", organization_id="o", role=Role.WRITER)
SERVICE = Caller(name="worker", tenant_id="*", organization_id="*", role=Role.SERVICE)
WORKER = Worker(worker_id="w")
MAX_COMMANDS = 2_000


class PythonHere:
    """Runs user code in this process: what a child does with a call, without the child."""

    async def run(self, *, owner: Owner, code: PythonCode, timeout_seconds: float | None) -> CallEnd:
        request = Request(
            id=1,
            source=code.source,
            inputs=dict(code.inputs),
            context=dict(code.context),
            libs=dict(code.libs),
            max_result_bytes=16 << 20,
        )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            outcome, body = await asyncio.to_thread(answer, json.loads(json.dumps(request, default=plain)))
        said: Any = decode(body)
        data, error = (said, None) if outcome == "data" else (None, said)
        told = Answer(data=data, error=error, retire=None, rss_bytes=0)
        return Answered(answer=told, printed=Printed(stdout=printed.getvalue(), stderr=""))


class ExecutionsHere:
    """What a worker asks of api about executions, answered from the log."""

    def __init__(self, start: StartExecution, log: InMemoryEventLog) -> None:
        self._start = start
        self._log = log

    async def execute(
        self,
        scope: Scope | None,
        *,
        path: str = "",
        version: int = 0,
        payload: Mapping[str, Any] | None = None,
        parent_execution_id: int | None = None,
        parent_call: StartingCall | None = None,
    ) -> Started:
        """Start a playbook."""
        request = StartRequest(
            path=path,
            version=version,
            payload=payload or {},
            parent_execution_id=parent_execution_id,
            parent_call=parent_call,
        )
        return await self._start(SERVICE, scope, request)

    async def get(self, scope: Scope | None, execution_id: int, *, min_version: int = 0) -> ExecutionView:
        """One execution, as of its last event."""
        events = map(record, self._log.streams[execution_id].events)
        return execution_view(fold_all(empty(execution_id), events))


class InMemoryRuntime:
    """One planner, one worker, no network, no disk, no clock that anybody waits for."""

    def __init__(self, payloads: InMemoryPayloadStore | None = None) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self.log = InMemoryEventLog(clock=self._tick)
        self.payloads = payloads or InMemoryPayloadStore()
        self._catalog = InMemoryCatalog()
        self._playbooks = PinnedPlaybooks(self._catalog)
        self._load_plan = LoadPlan(self._playbooks, self.payloads, max_attempts=3)
        self._start = StartExecution(
            log=self.log,
            catalog=self._catalog,
            parsed=ParsedPlaybooks(),
            payloads=self.payloads,
            next_id=self.log.next_id,
            clock=self._tick,
            playbook_env={},
            metrics=ApiMetrics(MetricSet()),
        )
        tables = ArrowTables()
        rows = LoadRows(self.payloads, tables)
        self._values = rows.values
        self._loops = LoopResults(self.log, rows.values)
        python: Any = PythonHere()  # in the place of the pool of children
        self._run = RunCommand(
            playbooks=self._playbooks,
            names=StepNames(rows, self._loops),
            pipeline=Pipeline(
                ToolRegistry({"noop": NoopTool(), "python": PythonTool(python)}),
                sleep=self._pass_time,
                children=ChildCalls(
                    ExecutionsHere(self._start, self.log), rows.values, loops=self._loops, sleep=self._pass_time
                ),
            ),
            persist=PersistBeforeEmit(self.payloads, tables),
            payloads=self.payloads,
            rows=rows,
            loops=self._loops,
        )
        self._planner = self._make_planner()
        self._work_of_planner = WorkOfPlanners(self._planner, self._planner)
        self.log.on_commit.append(self._deliver)

    def _tick(self) -> datetime:
        self._now += timedelta(milliseconds=1)
        return self._now

    async def _pass_time(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)

    def _make_planner(self) -> Actors:
        metrics = PlannerMetrics(MetricSet())
        rules = TurnRules(lease_seconds=10.0, now=self._tick, work_subject=lambda pool, kind: f"{pool}.{kind}")

        def make(execution_id: int, shard: int) -> Actor:
            return Actor(
                execution_id,
                shard=shard,
                log=self.log,
                load_plan=self._load_plan,
                rules=rules,
                fence=lambda shard: Fence(role="planner", shard=shard, epoch=0),
                producer="urn:test",
                metrics=metrics,
            )

        return Actors(
            shard_count=64, owns=lambda shard: True, owner_address=lambda shard: None, make_actor=make, metrics=metrics
        )

    def _deliver(self, events: Sequence[PlacedEvent]) -> None:
        for placed in events:
            self._planner.take(placed.head.execution_id, placed.stored)

    async def run(self, case: Case) -> Came:
        """What comes of a case."""
        try:
            for other in case.others:
                await self._catalog.register(SCOPE, other)
            registered = await self._catalog.register(SCOPE, case.document)
        except PlaybookInvalid as refused:
            return Came(problems=refused.problems)
        request = StartRequest(catalog_id=registered.entry.catalog_id, payload=dict(case.payload))
        started = await self._start(SOMEBODY, SCOPE, request)
        await self._work(started.execution_id)
        events = [record(stored) for stored in self.log.streams[started.execution_id].events]
        state = fold_all(empty(started.execution_id), events)
        results = {
            name: await self._load(started.execution_id, step.result)
            for name, step in state.execution.steps.items()
            if step.result and step.result.get("reference")
        }
        return Came(warnings=registered.warnings, state=state, events=events, results=results)

    async def _load(self, execution_id: int, result: Mapping[str, Any]) -> Any:
        if is_loop_reference(result["reference"]):
            return await self._loops(SCOPE, execution_id, result)
        return await self._values.get(_ref(result["reference"]))

    async def _work(self, execution_id: int) -> None:
        """Claim what was hinted at, in order, until the end is in the log."""
        stream = self.log.streams[execution_id]
        for taken in range(MAX_COMMANDS):
            await until(partial(self._ended_or_hinted, execution_id, beyond=taken))
            if stream.head.terminal:
                return
            hint: Any = decode(self.log.hints[taken].body)
            (outcome,) = await self._work_of_planner.claim(WORKER, [_key(hint)])
            command = outcome.command
            while command is not None:
                command = await self._run_and_tell(command)
        raise AssertionError(f"no end after {MAX_COMMANDS} commands")

    def _ended_or_hinted(self, execution_id: int, *, beyond: int) -> bool:
        return self.log.streams[execution_id].head.terminal or len(self.log.hints) > beyond

    async def _run_and_tell(self, command: GrantedCommand) -> GrantedCommand | None:
        end = await self._run(command)
        if isinstance(end, CommandPark):
            await self._planner.park(WORKER, command.key, end.call, timeout_seconds=end.timeout_seconds)
            return None
        completion = await self._work_of_planner.complete(
            WORKER, command.key, end.result, wants_next=True, variables=end.variables, logs=end.logs
        )
        return completion.next

    async def decided_again(self, events: Sequence[Recorded]) -> list[tuple[Recorded, list[object], list[object]]]:
        """Each cause of a history, what the log says was decided on it, and what `decide` says now."""
        state = empty(events[0].envelope.execution_id)
        plan: Plan | None = None
        folded: set[int] = set()
        found: list[tuple[Recorded, list[object], list[object]]] = []
        for event in events:
            if event.stream_version in folded:
                continue
            state = fold(state, event)
            if not is_cause(event):
                continue
            plan = plan or await self._load_plan(state.execution)
            now: list[object] = [*decide(state, event, plan)]
            decision = [other for other in events if other.decided_through == event.stream_version]
            for fact in decision:
                state = fold(state, fact)
                folded.add(fact.stream_version)
            # What a worker takes with its commit is told with the decision, and is none.
            granted = FrameDispatched | FrameStarted | ShardEnqueued
            decided = [fact.content for fact in decision if not isinstance(fact.content, granted)]
            found.append((event, decided, now))
        return found


def _key(hint: Mapping[str, Any]) -> CommandKey:
    execution_id = int(hint["execution_id"])
    if "stage_id" in hint:
        return slot_key(execution_id, stage_id=hint["stage_id"], slot=hint["slot"])
    return CommandKey(execution_id=execution_id, command_id=hint["command_id"])


def _ref(reference: Mapping[str, Any]) -> PayloadRef:
    return PayloadRef(**{key: reference[key] for key in ("uri", "sha256", "media_type", "bytes")})
