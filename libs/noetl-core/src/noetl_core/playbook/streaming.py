"""What cannot be streamed, or taken in chunks, is refused where it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from noetl_core.playbook.findings import Findings
from noetl_core.playbook.model import ArcEvent, Step, Task, ToolKind
from noetl_core.playbook.source import Path


def check_streams(step: Step, path: Path, tool_paths: Sequence[Path], findings: Findings) -> None:
    """Tasks that stream where nothing can, and arcs for chunks that never come."""
    for task, tool_path in zip(step.tasks, tool_paths, strict=False):
        if task.tool.stream is not None and task.loop is not None:
            findings.error("tool_config", "'stream' is not for a task with a loop", (*tool_path, "spec", "stream"))
    for index, arc in enumerate(step.next.arcs):
        if arc.on is not ArcEvent.CALL_PARTIAL:
            continue
        place: Path = (*path, "next", "arcs", index, "on")
        if step.loop is not None:
            findings.error("invalid_field", "'on' cannot be call.partial here: items of a loop fire no arcs", place)
        elif arc.step == step.name:
            findings.error("invalid_field", "'on' cannot be call.partial here: the step is still running", place)
        elif not any(map(_may_stream, step.tasks)):
            findings.error("invalid_field", "'on' waits for chunks, and no tool of this step has `stream`", place)


def check_ways_of_chunks(steps: Mapping[str, Step], paths: Mapping[str, Path], findings: Findings) -> None:
    """A step is left when its chunks have been taken: one whose chunks lead back to it would wait for itself."""
    takers = {
        name: [arc.step for arc in step.next.arcs if arc.on is ArcEvent.CALL_PARTIAL] for name, step in steps.items()
    }
    for name, step in steps.items():
        for index, arc in enumerate(step.next.arcs):
            if arc.on is ArcEvent.CALL_PARTIAL and arc.step != name and _leads_to(arc.step, name, takers):
                message = f"'on' cannot be call.partial here: chunks of {arc.step!r} lead back to this step"
                findings.error("invalid_field", message, (*paths[name], "next", "arcs", index, "on"))


def _leads_to(start: str, end: str, takers: Mapping[str, Sequence[str]]) -> bool:
    seen, pending = {start}, [start]
    while pending:
        for target in takers.get(pending.pop(), ()):
            if target == end:
                return True
            if target not in seen:
                seen.add(target)
                pending.append(target)
    return False


def _may_stream(task: Task) -> bool:
    return task.tool.stream is not None or task.tool.kind == ToolKind.WORKBOOK
