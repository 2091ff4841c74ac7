"""What a pipeline remembers while it runs: variables that it sets, its own scope, and the results of its tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from noetl_core.canonical import JsonValue
from noetl_core.executions.assignments import put_at
from noetl_core.playbook.expressions import render
from noetl_core.playbook.model import Assignment, SetScope
from noetl_core.playbook.views import CallView, RawView, StepView

from noetl_worker.application.iteration import NO_NAME, Iteration
from noetl_worker.application.outcome import Outcome

FIXED_NAMES = frozenset(
    {"steps", "execution_id", "catalog_id", "job", "idempotency_key", "output", "event", "ctx", "workload"}
)
"""Names of the runtime that were there before the pipeline: nothing that it sets or is called hides them."""
_OWN_NAMES = frozenset({"ctx", "workload", "step", "results", "_prev", "_task", "_attempt", "output"})
"""Those of the pipeline itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a pipeline has set, by scope."""

    variables: Mapping[str, JsonValue] = field(default_factory=dict)
    step_scope: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(slots=True)
class PipelineScope:
    """Names of one run of a pipeline; what it writes to `ctx` shows at once, and is told with its result."""

    outer: Mapping[str, object]
    """Variables, earlier steps and everything else that was there before."""
    variables: dict[str, JsonValue] = field(default_factory=dict)
    step_scope: dict[str, JsonValue] = field(default_factory=dict)
    results: dict[str, JsonValue] = field(default_factory=dict)
    loaded: dict[str, JsonValue] = field(default_factory=dict)
    """Results with the rows that went out in chunks, for tasks that read them; they are never stored again."""
    previous: JsonValue = None
    last_label: str = ""
    output: Outcome | None = None
    """Of the call before; what later tasks see of it is made when they begin, and there may be none."""
    iteration: Iteration | None = None
    """The item of a loop that the tasks run for."""

    def names(self, *, label: str, attempt: int) -> dict[str, object]:
        """What the templates of a task see, in the order of precedence of the language."""
        outer = self.outer
        labels = {label: self._label(label) for label in self.results}
        steps = outer.get("steps")
        variables = self._ctx()
        iteration = self.iteration
        return {
            **outer,
            **self.variables,
            **(steps if isinstance(steps, Mapping) else {}),
            **(iteration.iterators() if iteration else {}),
            **labels,
            **self.step_scope,
            **{name: outer[name] for name in FIXED_NAMES if name in outer},
            "ctx": variables,
            "workload": variables,
            "step": self.step_scope,
            "results": labels,
            "_prev": self.loaded.get(self.last_label, self.previous),
            "_task": label,
            "_attempt": attempt,
            **({"output": self._seen(self.output)} if self.output is not None else {}),
            **(iteration.names() if iteration else {}),
        }

    def name(self, name: str, *, label: str, attempt: int) -> object:
        """As `names` has it, from what wins to what yields, or `NO_NAME`."""
        iteration, outer = self.iteration, self.outer
        if iteration is not None and (found := iteration.name(name)) is not NO_NAME:
            return found
        if name in _OWN_NAMES and (name != "output" or self.output is not None):
            return self._own(name, label, attempt)
        if name in FIXED_NAMES and name in outer:
            return outer[name]
        if name in self.step_scope:
            return self.step_scope[name]
        if name in self.results:
            return self._label(name)
        if iteration is not None and (found := iteration.item(name)) is not NO_NAME:
            return found
        steps = outer.get("steps")
        if steps and isinstance(steps, Mapping) and name in steps:
            return steps[name]
        return self.variables[name] if name in self.variables else outer.get(name, NO_NAME)

    def has(self, name: str) -> bool:
        """Whether there is such a name, without what it stands for."""
        if name in self.outer or name in self.variables or name in self.results or name in self.step_scope:
            return True
        if name in _OWN_NAMES and (name != "output" or self.output is not None):
            return True
        if self.iteration is not None and self.iteration.has(name):
            return True
        steps = self.outer.get("steps")
        return bool(steps) and isinstance(steps, Mapping) and name in steps

    def _own(self, name: str, label: str, attempt: int) -> object:
        match name:
            case "output" if self.output is not None:
                return self._seen(self.output)
            case "step":
                return self.step_scope
            case "results":
                return {label: self._label(label) for label in self.results}
            case "_prev":
                return self.loaded.get(self.last_label, self.previous)
            case "_task":
                return label
            case "_attempt":
                return attempt
        return self._ctx()

    def _label(self, label: str) -> StepView:
        return StepView(self.loaded.get(label, self.results[label]))

    def _ctx(self) -> dict[str, object]:
        """The variables of the execution, with what this run has set."""
        ctx = self.outer.get("ctx")
        return {**(ctx if isinstance(ctx, Mapping) else {}), **self.variables}

    def _seen(self, output: Outcome) -> CallView:
        """The call before this one, with its rows if they were loaded."""
        loaded = self.loaded.get(self.last_label)
        if loaded is None:
            return CallView(envelope=output.envelope(), result=output.data)
        return CallView(envelope={"status": "ok"}, result=loaded)

    def for_item(self, iteration: Iteration, *, key: str) -> PipelineScope:
        """The scope of one item of a task's loop: what it sets is its own until it is taken back."""
        outer = {**self.outer, "idempotency_key": f"{self.outer.get('idempotency_key')}/{key}"}
        return replace(self.copy(), outer=outer, iteration=iteration)

    def copy(self) -> PipelineScope:
        """The same names, to be set apart."""
        return replace(
            self, variables=dict(self.variables), step_scope=dict(self.step_scope), results=dict(self.results)
        )

    def take_back(self, item: PipelineScope, *, before: PipelineScope) -> None:
        """What an item has set since `before`, in the order in which items end."""
        self.put(item.written(since=before))

    def written(self, *, since: PipelineScope) -> Written:
        """What was set since then."""
        return Written(
            variables=_changed(self.variables, since.variables),
            step_scope=_changed(self.step_scope, since.step_scope),
        )

    def put(self, written: Written) -> None:
        """Set what was written elsewhere."""
        self.variables.update(written.variables)
        self.step_scope.update(written.step_scope)

    def with_outcome(self, outcome: Outcome, *, step: str, label: str, attempt: int) -> dict[str, object]:
        """What rules see: the names of the task, and the envelope of its outcome as `output`."""
        error = outcome.error.to_json() if outcome.error else None
        return {
            **({"error": error} if error else {}),  # §6.4: it yields to a step or a variable of that name
            **self.names(label=label, attempt=attempt),
            "output": CallView(envelope=outcome.envelope(), result=outcome.data),
            "event": {"name": "call.error" if error else "call.done", "step": step, "payload": outcome.result()},
        }

    def set_from_task(
        self,
        assignments: Sequence[Assignment],
        outcome: Outcome,
        *,
        step: str,
        label: str,
        attempt: int,
        now: str | None,
    ) -> None:
        """A task's own `set` sees the raw result of its tool as `output` (§4.2)."""

        def see() -> dict[str, object]:
            seen = self.with_outcome(outcome, step=step, label=label, attempt=attempt)
            return {**seen, "output": RawView(outcome.data)}

        self.assign(assignments, see, now=now)

    def assign(
        self, assignments: Sequence[Assignment], see: Callable[[], Mapping[str, object]], *, now: str | None
    ) -> None:
        """Set in written order, each seeing what those before it did; raises `TemplateFailed`."""
        for assignment in assignments:
            path = f"`set` of {'.'.join(assignment.path)}"
            value = render(assignment.value, see(), now=now, path=path, chance=random.random)
            target = self._target(assignment.scope)
            name, *below = assignment.path
            before = target.get(name, self._around(assignment.scope).get(name)) if below else None
            target[name] = put_at(before, below, value)

    def _around(self, scope: SetScope) -> Mapping[str, object]:
        """Where a value stands of which only a place is set: never what merely has the same name."""
        if scope is SetScope.ITER and self.iteration is not None:
            return self.iteration.iterators()
        return self._ctx()

    def _target(self, scope: SetScope) -> dict[str, JsonValue]:
        if scope is SetScope.ITER and self.iteration is not None:
            return self.iteration.scope
        return self.variables if scope is SetScope.CTX else self.step_scope

    def finish(self, label: str, outcome: Outcome) -> None:
        """Remember how a task ended, for those after it."""
        result = outcome.result()
        self.results[label] = result
        self.loaded.pop(label, None)
        self.last_label = label
        self.previous = result
        self.output = outcome


def _changed(now: Mapping[str, JsonValue], before: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in now.items() if name not in before or before[name] is not value}
