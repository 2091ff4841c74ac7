"""Read the steps of a workflow."""

from __future__ import annotations

from dataclasses import dataclass, field

from noetl_core.canonical import JsonValue
from noetl_core.playbook.arcs import Mention, read_next
from noetl_core.playbook.assignments import read_output, read_set
from noetl_core.playbook.context_names import warn_if_shadowing
from noetl_core.playbook.fields import Fields
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.loops import read_loop, read_reduce
from noetl_core.playbook.model import AdmitRule, FailureMode, Reduce, Step, Tool, ToolKind
from noetl_core.playbook.pipelines import read_pipeline
from noetl_core.playbook.rules import read_admit
from noetl_core.playbook.source import Path
from noetl_core.playbook.streaming import check_streams
from noetl_core.playbook.timeouts import read_timeout
from noetl_core.playbook.vocabulary import STEP

MAX_STEPS = 10_000


@dataclass(slots=True, kw_only=True)
class Workflow:
    """The steps that could be read, where they and their tools stand, and every name that leads to a step."""

    steps: dict[str, Step] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    tools: list[tuple[Step, Tool, Path]] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)


def read_workflow(root: Fields) -> Workflow:
    """Every step under `workflow`; of two with the same name the first one counts."""
    workflow = Workflow()
    values = root.items("workflow")
    if "workflow" in root.values and not values:
        root.invalid("workflow", "must have at least one step")
    elif len(values) > MAX_STEPS:
        root.findings.error("too_large", f"a workflow may have at most {MAX_STEPS} steps", ("workflow",))
    else:
        for path, value in values:
            _add_step(workflow, value, path, root.findings)
    return workflow


def _add_step(workflow: Workflow, value: JsonValue, path: Path, findings: Findings) -> None:
    fields = Fields.read(value, path, findings, STEP)
    if fields is None:
        return
    name = fields.text("step")
    pipeline = read_pipeline(fields, name or "")
    spec = fields.below("spec")
    policy = None if spec is None else spec.below("policy")
    loop = fields.below("loop")
    timeout_seconds, timeout_template = read_timeout(spec)
    step = Step(
        name=name or "",
        desc=fields.text("desc") or "",
        # In place of a tool that cannot be run: the findings refuse it, and the rest is still checked.
        tool=pipeline.tasks[0].tool if pipeline.tasks else Tool(kind=ToolKind.NOOP),
        tasks=pipeline.tasks,
        is_pipeline=pipeline.is_list,
        input={**fields.map("args"), **fields.map("input")},
        loop=None if loop is None else read_loop(loop, spec),
        reduce=_reduce(fields, workflow),
        set=read_set(fields),
        output=read_output(fields),
        next=read_next(fields, workflow.mentions),
        timeout_seconds=timeout_seconds,
        timeout_template=timeout_template,
        failure_mode=_failure_mode(policy),
        admit=_admit(fields, policy),
    )
    if name is None:
        return
    warn_if_shadowing("step", name, (*path, "step"), findings)
    check_streams(step, path, pipeline.paths, findings)
    workflow.tools.extend(
        (step, task.tool, tool_path) for task, tool_path in zip(pipeline.tasks, pipeline.paths, strict=True)
    )
    if name in workflow.steps:
        findings.error("duplicate_step", f"there is another step {name!r}", (*path, "step"))
        return
    workflow.steps[name] = step
    workflow.paths[name] = path


def _reduce(step: Fields, workflow: Workflow) -> Reduce | None:
    fields = step.below("reduce")
    if fields is None:
        return None
    if "loop" in step.written:
        step.invalid("reduce", "and 'loop' exclude each other", code="tool_config")
    reduce = read_reduce(fields)
    is_list = isinstance(fields.values.get("from"), list)
    for index, source in enumerate(reduce.sources):
        place: Path = (*fields.path, "from", index) if is_list else (*fields.path, "from")
        workflow.mentions.append((source, place))
    return reduce


def _failure_mode(policy: Fields | None) -> FailureMode:
    failure = None if policy is None else policy.below("failure")
    mode = None if failure is None else failure.text("mode")
    return FailureMode.BEST_EFFORT if mode is None else FailureMode(mode)


def _admit(step: Fields, policy: Fields | None) -> tuple[AdmitRule, ...]:
    rules = () if policy is None else read_admit(policy)
    if not step.has("when"):
        return rules
    step.older("when", "`when` of a step is now `spec.policy.admit`")
    if rules:
        step.invalid("when", "and 'admit' exclude each other")
    return (AdmitRule(when=step.condition("when"), allow=True), AdmitRule(allow=False))
