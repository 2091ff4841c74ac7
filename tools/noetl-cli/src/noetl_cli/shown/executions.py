"""Executions for people and programs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State
from noetl_core.ports.projections import ExecutionPage, ExecutionView
from noetl_core.state_json import state_object
from noetl_core.upcasting.releases import UPCASTERS

from noetl_cli.shown.durations import clock_text, span_text, time_text
from noetl_cli.shown.steps import step_lines
from noetl_cli.shown.tables import table_lines
from noetl_cli.shown.text import one_line

NO_CHILDREN = ExecutionPage(executions=())
_COLOURS: Mapping[str, str] = {
    ExecutionStatus.RUNNING: "cyan",
    ExecutionStatus.PAUSED: "yellow",
    ExecutionStatus.COMPLETED: "green",
    ExecutionStatus.FAILED: "red",
    ExecutionStatus.CANCELLED: "yellow",
}


def view_of(state: State) -> ExecutionView:
    """What a follower has folded itself, in the form in which the server would show it."""
    execution = state.execution
    started = execution.started_at or state.event_time_watermark
    if started is None:
        raise ValueError("nothing has been folded yet")
    return ExecutionView(
        execution_id=execution.execution_id,
        tenant_id=execution.tenant_id,
        organization_id=execution.organization_id,
        path=execution.path,
        version=execution.version,
        catalog_id=execution.catalog_id,
        status=execution.status.value,
        last_event_type=state.last_event_type,
        last_node_name=state.last_node_name,
        start_time=started,
        end_time=execution.ended_at,
        error=execution.error,
        state=state_object(state),
        stream_version=state.stream_version,
        parent_execution_id=execution.parent_execution_id,
        upcasters=UPCASTERS.digest,
    )


def execution_document(view: ExecutionView) -> dict[str, Any]:
    """For programs; every key is always there."""
    return {
        "execution_id": str(view.execution_id),
        "path": view.path,
        "version": view.version,
        "catalog_id": view.catalog_id,
        "tenant_id": view.tenant_id,
        "organization_id": view.organization_id,
        "parent_execution_id": view.parent_execution_id or None,
        "status": view.status,
        "error": dict(view.error) if view.error is not None else None,
        "start_time": time_text(view.start_time),
        "end_time": time_text(view.end_time),
        "duration_seconds": _seconds(view),
        "last_event_type": view.last_event_type,
        "last_step": view.last_node_name or None,
        "stream_version": view.stream_version,
        "upcasters": view.upcasters or None,
    }


def detailed_document(view: ExecutionView, children: ExecutionPage = NO_CHILDREN) -> dict[str, Any]:
    """The same with the steps, and the newest of the executions that it has started."""
    return {
        **execution_document(view),
        "steps": [line.document() for line in step_lines(view.state)],
        "redrive_of": view.state.get("redrive_of"),
        "child_count": view.state.get("children", 0),
        "children": [execution_document(child) for child in children.executions],
        "loop_progress": dict(view.state.get("loop_progress", {})),
    }


def execution_lines(view: ExecutionView) -> Iterator[str]:
    """One execution, with all there is to say in a screen."""
    yield f"execution  {view.execution_id}"
    yield f"playbook   {view.path} version {view.version}"
    if view.parent_execution_id:
        yield f"parent     {view.parent_execution_id}"
    if view.state.get("redrive_of"):
        yield f"redrive of {view.state['redrive_of']}"
    yield f"status     {status_text(view.status)}"
    yield f"started    {clock_text(view.start_time)}"
    seconds = _seconds(view)
    if view.end_time is not None and seconds is not None:
        yield f"ended      {clock_text(view.end_time)}, after {span_text(seconds)}"
    if view.error is not None:
        yield f"error      {failure_text(view.error)}"
    yield f"events     {view.stream_version}, the last is {view.last_event_type}"
    steps = step_lines(view.state)
    if steps:
        yield "steps"
        loops = view.state.get("loop_progress", {})
        rows = [
            (line.step, line.status, _attempts(line.activation, line.attempt), _items(loops.get(line.step)))
            for line in steps
        ]
        yield from (f"  {line}" for line in table_lines(rows))


def children_lines(view: ExecutionView, children: ExecutionPage) -> Iterator[str]:
    """The newest executions that it has started, and how to see the others."""
    if not children.executions:
        return
    yield f"children   {view.state.get('children', len(children.executions))}"
    yield from (f"  {line}" for line in list_lines(children.executions))
    if children.next_page_token:
        yield f"  there are more: noetl list --parent {view.execution_id}"


def list_lines(views: Sequence[ExecutionView]) -> Iterator[str]:
    """Many executions, one line each."""
    rows = [("EXECUTION", "STATUS", "PLAYBOOK", "STARTED", "TOOK")]
    for view in views:
        seconds = _seconds(view)
        rows.append(
            (
                str(view.execution_id),
                view.status,
                f"{view.path} v{view.version}",
                clock_text(view.start_time),
                span_text(seconds) if seconds is not None else "",
            )
        )
    yield from table_lines(rows)


def status_text(status: str) -> str:
    """A status in its colour."""
    return click.style(status, fg=_COLOURS.get(status), bold=True)


def failure_text(error: Mapping[str, Any]) -> str:
    """Why an execution failed, in one line."""
    step = f"step {error['step']!r}: " if error.get("step") else ""
    code = f" ({error['code']})" if error.get("code") else ""
    return one_line(f"{step}{error.get('message') or 'no reason was given'}{code}")


def _seconds(view: ExecutionView) -> float | None:
    return (view.end_time - view.start_time).total_seconds() if view.end_time is not None else None


def _attempts(activation: int, attempt: int) -> str:
    notes = []
    if activation > 1:
        notes.append(f"activation {activation}")
    if attempt > 1:
        notes.append(f"attempt {attempt}")
    return ", ".join(notes)


def _items(progress: Mapping[str, Any] | None) -> str:
    """How far the loop of a step has come."""
    if progress is None:
        return ""
    failed = f", {progress['failed']} failed" if progress.get("failed") else ""
    return f"{progress.get('done', 0)} of {progress.get('total', 0)} items{failed}"
