"""What can only be told of all steps together: what reduce stages read, and where nobody can wait."""

from __future__ import annotations

from noetl_core.playbook.findings import Findings
from noetl_core.playbook.loop_model import Engine
from noetl_core.playbook.model import LoopMode, Step, ToolKind
from noetl_core.playbook.source import Path
from noetl_core.playbook.steps import Workflow
from noetl_core.playbook.support import Feature
from noetl_core.playbook.workbook import Workbook


def check_stages(workflow: Workflow, workbook: Workbook, findings: Findings) -> None:
    """Report reduce stages without partitions to read, and waiting calls in frames."""
    for name, step in workflow.steps.items():
        if step.reduce is not None:
            _check_sources(step, workflow, (*workflow.paths[name], "reduce", "from"), findings)
            _check_engine(step, (*workflow.paths[name], "reduce", "spec", "engine"), findings)
    for step, tool, path in workflow.tools:
        within = _frames_of(step)
        if within is not None and workbook.waits(tool):
            message = f"a playbook that is waited for cannot run in {within}"
            suggestion = "leave out `return_step`, or loop in mode sequential or parallel without frames"
            findings.error("wait_in_frame", message, path, suggestion=suggestion)


def _check_sources(step: Step, workflow: Workflow, path: Path, findings: Findings) -> None:
    for source in step.reduce.sources if step.reduce else ():
        other = workflow.steps.get(source)
        if source == step.name:
            findings.error("tool_config", "a step cannot reduce its own output", path)
        elif other is not None and not _gives_partitions(other):
            message = f"the step {source!r} has no partitions: it has no loop, no spark tool and no `reduce`"
            findings.error("tool_config", message, path)


def _check_engine(step: Step, path: Path, findings: Findings) -> None:
    """Spark tasks run from the driver wherever their frame does; others would have to run in the tasks of a job."""
    is_spark = step.reduce is not None and step.reduce.engine is Engine.SPARK
    if is_spark and any(task.tool.kind != ToolKind.SPARK for task in step.tasks):
        findings.supports(Feature.LOOP_SPARK, path)


def _gives_partitions(step: Step) -> bool:
    has_spark = any(task.tool.kind == ToolKind.SPARK for task in step.tasks)
    return step.loop is not None or step.reduce is not None or has_spark


def _frames_of(step: Step) -> str | None:
    """What it is that runs as frames, which are held by a worker until they end."""
    if step.reduce is not None:
        return "a reduce stage"
    if step.loop is None:
        return None
    if step.loop.cursor is not None:
        return "a loop over a cursor"
    if step.loop.mode is LoopMode.FANOUT:
        return "a loop with fan-out"
    if step.loop.frame is not None:
        return "frames"
    return "a loop on spark" if step.loop.engine is Engine.SPARK else None
