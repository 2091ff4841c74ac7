"""Read the tasks that steps call by name, and check the calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from noetl_core.playbook.fields import Fields
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.model import Step, Tool, ToolKind, WorkbookTask
from noetl_core.playbook.pipelines import read_workbook_tool
from noetl_core.playbook.shapes import is_template
from noetl_core.playbook.source import Path
from noetl_core.playbook.vocabulary import WORKBOOK_TASK


@dataclass(slots=True, kw_only=True)
class Workbook:
    """The tasks that could be read, where their tools stand, and the names of all."""

    tasks: dict[str, WorkbookTask] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    ends: dict[str, Tool | None] = field(default_factory=dict)
    """The tool that a call of a task ends at, through tasks that call tasks; nothing if that cannot be told."""
    endless: set[str] = field(default_factory=set)
    """Tasks that call themselves, directly or through others."""

    def waits(self, tool: Tool) -> bool:
        """Whether a call waits for the end of another playbook."""
        final = self.ends.get(called_task(tool) or "") if tool.kind == ToolKind.WORKBOOK else tool
        return final is not None and final.kind == ToolKind.PLAYBOOK and "return_step" in final.config

    def follow(self, start: str) -> None:
        """Find where a task ends; what is known of others is not looked for again."""
        trail: dict[str, None] = {}
        name: str | None = start
        end: Tool | None = None
        while name in self.tasks and name not in self.ends:
            if name in trail:
                passed = list(trail)
                self.endless.update(passed[passed.index(name) :])
                break
            trail[name] = None
            end = self.tasks[name].tool
            if end.kind != ToolKind.WORKBOOK:
                break
            name, end = called_task(end), None
        else:
            end = self.ends.get(name or "")
        self.ends.update(dict.fromkeys(trail, end))


def waits_for_children(step: Step, tasks: Mapping[str, WorkbookTask]) -> bool:
    """Whether a task of a checked step, itself or through the workbook, waits for the end of another playbook."""
    return any(_waits(task.tool, tasks) for task in step.tasks)


def _waits(tool: Tool, tasks: Mapping[str, WorkbookTask]) -> bool:
    for _ in range(len(tasks) + 1):
        if tool.kind != ToolKind.WORKBOOK:
            return tool.kind == ToolKind.PLAYBOOK and "return_step" in tool.config
        called = tasks.get(called_task(tool) or "")
        if called is None:
            return False
        tool = called.tool
    return False


def read_workbook(root: Fields) -> Workbook:
    """Every task under `workbook`; of two with the same name the first one counts."""
    workbook = Workbook()
    for path, value in root.items("workbook"):
        fields = Fields.read(value, path, root.findings, WORKBOOK_TASK)
        name = None if fields is None else fields.text("name")
        if fields is None or name is None:
            continue
        if name in workbook.names:
            message = f"there is another task {name!r} in the workbook"
            root.findings.error("duplicate_label", message, (*path, "name"))
            continue
        workbook.names.add(name)
        read = read_workbook_tool(fields, name)
        if read is not None:
            tool, workbook.paths[name] = read
            workbook.tasks[name] = WorkbookTask(name=name, desc=fields.text("desc") or "", tool=tool)
    for name in workbook.tasks:
        workbook.follow(name)
    return workbook


def check_calls(workbook: Workbook, tools: Iterable[tuple[Tool, Path]], findings: Findings) -> None:
    """Report calls of tasks that do not exist, and tasks that call each other without an end."""
    own = [(task.tool, workbook.paths[name]) for name, task in workbook.tasks.items()]
    for tool, path in (*own, *tools):
        name = called_task(tool)
        if name is not None and name not in workbook.names:
            suggestion = findings.did_you_mean(name, workbook.names)
            findings.error("unknown_task", f"the workbook has no task {name!r}", path, suggestion=suggestion)
    for endless in sorted(workbook.endless):
        message = f"the task {endless!r} calls itself, directly or through others"
        findings.error("invalid_field", message, workbook.paths[endless])


def called_task(tool: Tool) -> str | None:
    """The name of the workbook's task that a tool calls, if it is known before it is rendered."""
    name = tool.config.get("task") if tool.kind == ToolKind.WORKBOOK else None
    return name if isinstance(name, str) and not is_template(name) else None
