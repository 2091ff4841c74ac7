"""Read the steps of a workflow."""

from __future__ import annotations

from dataclasses import dataclass, field

from noetl_core.canonical import JsonValue
from noetl_core.playbook.arcs import Mention, read_next
from noetl_core.playbook.fields import Fields, type_name
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.model import FailureMode, Step, Tool, ToolKind
from noetl_core.playbook.source import Path
from noetl_core.playbook.tools import read_tool
from noetl_core.playbook.vocabulary import FAILURE_POLICY, STEP, STEP_POLICY, STEP_SPEC

MAX_STEPS = 10_000


@dataclass(slots=True, kw_only=True)
class Workflow:
    """The steps that could be read, where they stand, and every name that leads to a step."""

    steps: dict[str, Step] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    mentions: list[Mention] = field(default_factory=list)


def read_workflow(root: Fields) -> Workflow:
    """Every step under `workflow`; of two with the same name the first one counts."""
    workflow = Workflow()
    values = root.values.get("workflow")
    if values is None:
        root.missing("workflow", "a playbook")
    elif not isinstance(values, list):
        root.invalid("workflow", f"must be a list of steps, not {type_name(values)}")
    elif not values:
        root.invalid("workflow", "must have at least one step")
    elif len(values) > MAX_STEPS:
        root.findings.error("too_large", f"a workflow may have at most {MAX_STEPS} steps", ("workflow",))
    else:
        for index, value in enumerate(values):
            _add_step(workflow, value, ("workflow", index), root.findings)
    return workflow


def _add_step(workflow: Workflow, value: JsonValue, path: Path, findings: Findings) -> None:
    fields = Fields.read(value, path, findings, title="a step")
    if fields is None:
        return
    fields.check_keys(STEP)
    name = fields.name("step", title="a step")
    step = Step(
        name=name or "",
        desc=fields.text("desc") or "",
        # In place of a tool that cannot be run: the findings refuse it, and the rest is still checked.
        tool=_tool(fields) or Tool(kind=ToolKind.NOOP),
        input={**fields.templates("args"), **fields.templates("input")},
        next=read_next(fields.values.get("next"), (*path, "next"), findings, workflow.mentions),
        failure_mode=_failure_mode(fields),
    )
    if name is None:
        return
    if name in workflow.steps:
        findings.error("duplicate_step", f"there is another step {name!r}", (*path, "step"))
        return
    workflow.steps[name] = step
    workflow.paths[name] = path


def _tool(step: Fields) -> Tool | None:
    value = step.values.get("tool")
    if value is None:
        step.findings.warn("missing_tool", "the step has no tool, so it does nothing", step.path)
        return None
    return read_tool(value, (*step.path, "tool"), step.findings)


def _failure_mode(step: Fields) -> FailureMode:
    spec = step.below("spec")
    if spec is None:
        return FailureMode.BEST_EFFORT
    spec.check_keys(STEP_SPEC)
    policy = spec.below("policy")
    if policy is None:
        return FailureMode.BEST_EFFORT
    policy.check_keys(STEP_POLICY)
    failure = policy.below("failure")
    if failure is None:
        return FailureMode.BEST_EFFORT
    failure.check_keys(FAILURE_POLICY)
    return FailureMode(failure.choice("mode", tuple(FailureMode)) or FailureMode.BEST_EFFORT)
