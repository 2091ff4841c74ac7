"""Read what runs in a step: one tool, or a list of them with labels that rules jump to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from noetl_core.canonical import JsonValue
from noetl_core.playbook.context_names import warn_if_shadowing
from noetl_core.playbook.fields import Fields, type_name
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.source import Path
from noetl_core.playbook.support import Feature
from noetl_core.playbook.task_model import Do, Rule, Task, Tool, ToolKind
from noetl_core.playbook.tools import ReadTool, read_tool

MAX_TASKS = 1000
_PREVIOUS = "previous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The tasks that could be read, and where they stand."""

    tasks: tuple[Task, ...] = ()
    paths: tuple[Path, ...] = ()
    is_list: bool = False


def read_pipeline(step: Fields, name: str) -> Pipeline:
    """The tasks of a step; one without a tool does nothing."""
    value = step.values.get("tool")
    path = (*step.path, "tool")
    if isinstance(value, list):
        return _read_list(value, path, step.findings)
    if value is None:
        if "tool" not in step.written:
            step.findings.warn("missing_tool", "the step has no tool, so it does nothing", step.path)
        return Pipeline()
    read = read_tool(value, path, step.findings)
    if read is None:
        return Pipeline()
    label = read.tool.label or f"{name}_task"
    return _pipeline([(label, read)], step.findings)


def read_workbook_tool(task: Fields, name: str) -> tuple[Tool, Path] | None:
    """The one tool of a workbook's task."""
    if not task.has("tool"):
        return None
    read = read_tool(task.values["tool"], (*task.path, "tool"), task.findings)
    if read is None:
        return None
    if read.loop is not None:
        task.findings.error("invalid_field", "a task of the workbook has no loop", (*read.path, "loop"))
    pipeline = _pipeline([(name, read)], task.findings)
    return pipeline.tasks[0].tool, read.path


def _read_list(values: list[JsonValue], path: Path, findings: Findings) -> Pipeline:
    if not findings.supports(Feature.PIPELINES, path):
        return Pipeline()
    if not values:
        findings.error("invalid_field", "'tool' must have at least one tool", path)
        return Pipeline()
    if len(values) > MAX_TASKS:
        findings.error("too_large", f"a pipeline may have at most {MAX_TASKS} tasks", path)
        return Pipeline()
    found: list[tuple[str, ReadTool]] = []
    labels: set[str] = set()
    for index, member in enumerate(values):
        label, value, here = _unwrapped(member, (*path, index), findings)
        read = read_tool(value, here, findings, in_pipeline=True)
        written = label or (read.tool.label if read else None)
        label = written or f"task_{index}"
        if label in labels:
            where = (*here, "name") if isinstance(value, dict) and "name" in value else here
            findings.error("duplicate_label", f"there is another task {label!r} in this pipeline", where)
        labels.add(label)
        if written is not None:
            warn_if_shadowing("task", written, here, findings)
        if read is not None:
            _warn_about_keeping(read, findings)
            found.append((label, read))
    return replace(_pipeline(found, findings, labels=labels), is_list=True)


def _warn_about_keeping(read: ReadTool, findings: Findings) -> None:
    output = read.tool.output
    if output is not None and (output.store or output.scope or output.inline_max_bytes is not None):
        message = "in a pipeline only `select` says something: the step's result is kept as the step's `output` says"
        findings.warn("unknown_key", message, (*read.path, "output"))


def _unwrapped(value: JsonValue, path: Path, findings: Findings) -> tuple[str | None, JsonValue, Path]:
    """`{label: {kind: …}}` is another way to write `{name: label, kind: …}`."""
    if not isinstance(value, dict):
        findings.error("invalid_field", f"a task must be a map, not {type_name(value)}", path)
        return None, {"kind": ToolKind.NOOP}, path
    if "kind" in value or len(value) != 1:
        return None, value, path
    ((label, inside),) = value.items()
    return (label, inside, (*path, label)) if isinstance(inside, dict) else (None, value, path)


def _pipeline(
    found: list[tuple[str, ReadTool]], findings: Findings, *, labels: Collection[str] | None = None
) -> Pipeline:
    known = [label for label, _ in found] if labels is None else labels
    tasks: list[Task] = []
    for index, (label, read) in enumerate(found):
        before = found[index - 1][0] if index else None
        tasks.append(Task(label=label, tool=_with_targets(read, before, known, findings), loop=read.loop))
    return Pipeline(tasks=tuple(tasks), paths=tuple(read.path for _, read in found))


def _with_targets(read: ReadTool, before: str | None, labels: Collection[str], findings: Findings) -> Tool:
    """The tool with the labels that its jumps lead to, all of which must exist."""
    rules: list[Rule] = []
    for rule, path in zip(read.tool.rules, read.actions, strict=True):
        written = rule.then.to
        target = before if written == _PREVIOUS and _PREVIOUS not in labels else written
        if rule.then.do is Do.JUMP and written is not None and target not in labels:
            is_first = written == _PREVIOUS
            message = "there is no task before this one" if is_first else f"there is no task {written!r} to jump to"
            suggestion = None if is_first else findings.did_you_mean(written, labels)
            findings.error("unknown_label", message, (*path, "to"), suggestion=suggestion)
        elif rule.then.do is Do.JUMP and read.loop is not None:
            findings.error("invalid_field", "an item of a task's loop cannot jump to another task", path)
        rules.append(replace(rule, then=replace(rule.then, to=target)))
    return replace(read.tool, rules=tuple(rules))
