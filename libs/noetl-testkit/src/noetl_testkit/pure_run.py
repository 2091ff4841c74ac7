"""An execution without services: fold and decide, steps that end as a test says, and a worker's part of evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from noetl_core.canonical import JsonObject, encode
from noetl_core.catalog import to_draft
from noetl_core.causes import is_cause
from noetl_core.commands.events import CallDone, CallFailed, CommandAbandoned, CommandCompleted, CommandFailed
from noetl_core.commands.state import Command
from noetl_core.events import Event
from noetl_core.executions.decide import decide
from noetl_core.executions.evaluate import evaluate
from noetl_core.executions.evaluation import Evaluation
from noetl_core.executions.events import PlaybookInitialized, StepEntered, StepSkipped
from noetl_core.executions.names import LOADED
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.fold import State, empty, fold
from noetl_core.payloads import PayloadRef, refer_to
from noetl_core.playbook.selection import control_paths, select_scalars
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.recorded import as_if_recorded
from noetl_core.streams.state import Chunk

START = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTION = 7_000_000_000_000_000_001
MAX_VALUE_BYTES = 1024


@dataclass
class PureRun:
    """Everything that happens is in `events`; `stored` has what a payload store would have."""

    plan: Plan
    outcome: Callable[[str, int], Any]
    state: State = field(default_factory=lambda: empty(EXECUTION))
    events: list[Event] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)
    evaluated: list[Evaluation] = field(default_factory=list)

    @classmethod
    def of(cls, yaml: str, outcome: Callable[[str, int], Any] = lambda step, visit: {}, **workload: Any) -> PureRun:
        """A run of a playbook whose head is left out."""
        head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
        playbook, _ = parse_playbook(head + yaml, supported=EVERYTHING)
        return cls(plan=Plan(playbook=playbook, workload={**playbook.workload, **workload}), outcome=outcome)

    def start(self) -> PureRun:
        """Begin."""
        self.happens(PlaybookInitialized(path="p", version=1, catalog_id="1", payload_ref=None))
        return self

    def happens(self, content: Event) -> None:
        """Append an event, and everything that follows from it."""
        version = self.state.stream_version + 1
        draft = to_draft(content, idempotency_key=f"{version}")
        command = self.state.commands.get(draft.command_id)
        recorded = as_if_recorded(
            draft,
            tenant_id="t",
            organization_id="o",
            execution_id=EXECUTION,
            stream_version=version,
            aggregate_version=(command.aggregate_version if command else 0) + 1,
            time=START + timedelta(seconds=version),
        )
        self.events.append(content)
        self.state = fold(self.state, recorded)
        if is_cause(recorded):
            for fact in decide(self.state, recorded, self.plan):
                self.happens(fact)

    def open(self) -> list[Command]:
        """Commands that a worker could claim or runs."""
        return [command for command in self.state.commands.values() if command.is_open]

    def command(self, node: str) -> Command:
        """The open command of a node."""
        return next(command for command in self.open() if command.step == node)

    def finish(self, node: str) -> None:
        """A worker does what the open command of a node asks for."""
        command = self.command(node)
        if command.evaluation is None:
            self._close(command, self._result(command))
        else:
            self._close(command, self.answer(command))

    def fail(self, node: str, error: JsonObject) -> None:
        """A worker gives up on the open command of a node."""
        context: JsonObject = {"error": error}
        self._close(self.command(node), {"status": "error", "reference": None, "parent_ref": None, "context": context})

    def silence(self, node: str) -> None:
        """The worker of the open command of a node is not heard of any more."""
        self.lost(self.command(node))

    def lost(self, command: Command) -> None:
        """The worker of a command is not heard of any more."""
        self.happens(
            CommandAbandoned(
                **command.of_command,
                previous_owner="w",
                reclaimer="r",
                prior_lease_until="2026-01-01T00:00:00.000000Z",
                previous_attempt=command.attempt,
                max_attempts=self.plan.max_attempts,
                **command.of_item,
            )
        )

    def to_the_end(self, pick: Callable[[list[str]], str] = lambda running: running[0]) -> PureRun:
        """Start, and finish one open command after the other."""
        self.start()
        return self.go_on(pick)

    def go_on(self, pick: Callable[[list[str]], str] = lambda running: running[0]) -> PureRun:
        """Finish one open command after the other."""
        for _ in range(1000):
            if self.state.execution.status.is_final:
                return self
            self.finish(pick([command.step for command in self.open()]))
        raise AssertionError("the execution does not end")

    def entered(self) -> list[str]:
        """Steps in the order in which they were entered."""
        return [event.step for event in self.events if isinstance(event, StepEntered)]

    def skipped(self) -> list[str]:
        """Steps in the order in which they were skipped."""
        return [event.step for event in self.events if isinstance(event, StepSkipped)]

    def answer(self, command: Command) -> JsonObject:
        """What a worker answers to an internal command."""
        evaluation = Evaluation.from_json(command.evaluation or {})
        self.evaluated.append(evaluation)
        evaluation = replace(evaluation, chunk=self.with_rows(evaluation.chunk))
        recording = evaluate(evaluation, self.with_data(self.state.execution), self.plan)
        refs = {place: self.store(value) for place, value in recording.values.items() if _is_large(value)}
        context: JsonObject = {"evaluation": recording.told(refs)}
        return {"status": "ok", "reference": None, "parent_ref": None, "context": context}

    def with_rows(self, chunk: Chunk | None) -> Chunk | None:
        """A chunk as a worker sees it."""
        return replace(chunk, reference={**chunk.reference, LOADED: self.rows_of(chunk)}) if chunk else None

    def rows_of(self, chunk: Chunk) -> Any:
        """The rows that were stored for a chunk."""
        return self.stored[chunk.reference["uri"]]

    def with_data(self, execution: Execution) -> Execution:
        """The execution as a worker sees it."""
        steps = {
            name: replace(step, result={**step.result, LOADED: self.results.get(name)}) if step.result else step
            for name, step in execution.steps.items()
        }
        variables = {name: self.stored[ref["uri"]] for name, ref in execution.variable_refs.items()}
        return replace(execution, steps=steps, variables={**execution.variables, **variables}, variable_refs={})

    def store(self, value: Any) -> PayloadRef:
        """Keep a value as a payload store does."""
        ref = refer_to(encode(value), tenant_id="t", organization_id="o", media_type="application/json")
        self.stored[ref.uri] = value
        return ref

    def _result(self, command: Command) -> JsonObject:
        value = self.outcome(command.step, command.activation)
        error = value if isinstance(value, dict) and "code" in value else None
        self.results[command.step] = {"status": "error", "error": error} if error else value
        selected, unselected = select_scalars(value, control_paths(self.plan.playbook, command.step))
        context: JsonObject = {"select": selected, "unselected": list(unselected)}
        if error:
            context["error"] = error
        return {"status": "error" if error else "ok", "reference": None, "parent_ref": None, "context": context}

    def _close(self, command: Command, result: JsonObject) -> None:
        failed = result["status"] == "error"
        ids: dict[str, Any] = {**command.of_command, **command.of_item}
        self.happens((CallFailed if failed else CallDone)(**ids, result=result))
        self.happens((CommandFailed if failed else CommandCompleted)(**ids, worker_id="w"))


def _is_large(value: Any) -> bool:
    return len(encode(value)) > MAX_VALUE_BYTES
