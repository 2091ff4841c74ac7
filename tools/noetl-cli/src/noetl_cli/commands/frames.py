"""`noetl frames`: stages and their frames, rows that failed in them, and another run of those rows."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from noetl_contracts.clients import RedrivenExecution
from noetl_core.canonical import JsonObject
from noetl_core.errors import NotFound
from noetl_servicekit.failed_rows import FailedRow, FailedRows
from noetl_servicekit.stored_values import StoredValues

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.tables import table_lines
from noetl_cli.tables import StoredTables

_LONGEST: Final = 100
"""Characters of a message or row in a table; JSON has all of it."""


@click.group()
def frames() -> None:
    """Look at loops that run in frames, and run rows that failed once more."""


@frames.command("list")
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@output_option
@takes_server
def list_stages(*, execution_id: int, output: Output, find_server: FindServer) -> None:
    """Show the stages of an execution: how far their rows are, and which worker holds which frame.

    \b
    Examples:
      noetl frames list 271828182845904523
      noetl frames list 271828182845904523 -o json | jq '.stages[].frames'
    """

    async def ask() -> Mapping[str, Any]:
        async with connected(find_server()) as clients:
            view = await clients.executions.get(None, execution_id)
            return view.state

    state = asyncio.run(ask())
    progress = state.get("loop_progress", {})
    stages = [_stage(step, stage, progress.get(step, {})) for step, stage in state.get("stages", {}).items()]
    if output is Output.JSON:
        echo_json({"execution_id": str(execution_id), "stages": stages})
        return
    if not stages:
        click.echo(f"execution {execution_id} has opened no stages")
        return
    head = ("STEP", "KIND", "ENGINE", "STATUS", "FRAMES", "HELD", "ROWS", "OK", "FAILED")
    columns = ("step", "kind", "engine", "status", "frame_count", "held", "total", "success", "failed")
    for line in table_lines([head, *([str(one[name]) for name in columns] for one in stages)]):
        click.echo(line)
    held = [(step, *frame) for step, stage in state["stages"].items() for frame in _held(stage.get("frames", {}))]
    if held:
        click.echo("")
        for line in table_lines([("STEP", "FRAME", "ROWS", "ATTEMPT", "WORKER", "LEASE UNTIL"), *held]):
            click.echo(line)


@frames.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.argument("step")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Show at most so many.")
@output_option
@takes_server
def failed(*, execution_id: int, step: str, limit: int, output: Output, find_server: FindServer) -> None:
    """Show rows of a loop that failed for good, with their errors.

    With `on_failure: bisect` these are the rows that fail alone.

    \b
    Examples:
      noetl frames failed 271828182845904523 enrich
      noetl frames failed 271828182845904523 enrich -o json | jq '.rows[].error.code'
    """

    async def ask() -> tuple[list[FailedRow], int]:
        async with connected(find_server()) as clients:
            view = await clients.executions.get(None, execution_id)
            loop = view.state.get("loops", {}).get(step)
            if loop is None:
                raise NotFound("loop of step", step, code="execution.loop_not_found")
            rows: list[FailedRow] = []
            found = FailedRows(clients.events, StoredValues(clients.payloads, StoredTables()))
            version = int(loop.get("started_version", 1))
            async for row in found(None, execution_id, loop_id=loop["loop_id"], from_version=version):
                rows.append(row)
                if len(rows) == limit:
                    break
            return rows, int(loop.get("failed", 0))

    rows, total = asyncio.run(ask())
    if output is Output.JSON:
        told = [_failed_object(row) for row in rows]
        echo_json({"execution_id": str(execution_id), "step": step, "failed": total, "rows": told})
        return
    if not rows:
        click.echo(f"no row of {step!r} has failed")
        return
    lines = [("ROW", "CODE", "MESSAGE", "VALUE"), *(_failed_line(row) for row in rows)]
    for line in table_lines(lines):
        click.echo(line)
    if total > len(rows):
        click.echo(f"{total - len(rows)} more: --limit {min(total, 10_000)}")


@frames.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.argument("step")
@click.option("--reason", default="", help="Why; it is kept with the event.")
@click.option("--start-key", default="", metavar="KEY", help="Repeating the command with it starts nothing else.")
@output_option
@takes_server
def redrive(
    *, execution_id: int, step: str, reason: str, start_key: str, output: Output, find_server: FindServer
) -> None:
    """Run the rows of a loop that failed once more, in a new execution.

    The ended execution stays as it is. The new one runs STEP for these rows alone, with the variables and results of
    the old one, and leads nowhere from there: what followed STEP had the other rows, and has run.

    \b
    Examples:
      noetl frames redrive 271828182845904523 enrich
      noetl frames redrive 271828182845904523 enrich -o json | jq -r .execution_id
    """

    async def start() -> RedrivenExecution:
        async with connected(find_server()) as clients:
            return await clients.executions.redrive(
                None, execution_id, step=step, reason=reason, start_key=start_key, failed_rows=True
            )

    redriven = asyncio.run(start())
    if output is Output.JSON:
        echo_json(
            {
                "execution_id": str(redriven.execution_id),
                "redrive_of": str(execution_id),
                "step": redriven.step,
                "row_count": redriven.row_count,
                "path": redriven.path,
                "version": redriven.version,
                "created": redriven.created,
            }
        )
    else:
        rows = "1 row" if redriven.row_count == 1 else f"{redriven.row_count} rows"
        click.echo(f"execution {redriven.execution_id} runs {rows} of {redriven.step!r} of {execution_id} again")


def _stage(step: str, stage: Mapping[str, Any], progress: Mapping[str, Any]) -> JsonObject:
    frames = stage.get("frames", {})
    return {
        "step": step,
        "stage_id": stage["stage_id"],
        "kind": stage.get("kind", ""),
        "engine": stage.get("engine", ""),
        "status": stage.get("status") or "open",
        "frame_count": stage.get("dispatched", 0),
        "held": sum(1 for frame in frames.values() if frame.get("worker_id")),
        "total": stage.get("total", 0),
        "success": progress.get("success", 0),
        "failed": progress.get("failed", 0),
        "frames": frames,
    }


def _held(frames: Mapping[str, Mapping[str, Any]]) -> Sequence[tuple[str, ...]]:
    return [
        (
            str(frame.get("index", 0)),
            f"{frame.get('start', 0)}-{frame.get('stop', 0)}",
            str(frame.get("attempt", 0)),
            frame["worker_id"],
            frame.get("lease_until", "-"),
        )
        for frame in frames.values()
        if frame.get("worker_id")
    ]


def _failed_object(row: FailedRow) -> JsonObject:
    return {"index": row.index, "frame_id": row.frame_id or None, "error": row.error, "row": row.row}


def _failed_line(row: FailedRow) -> tuple[str, str, str, str]:
    value = json.dumps(row.row, ensure_ascii=False)
    return str(row.index), str(row.error.get("code") or "-"), _cut(str(row.error.get("message") or "-")), _cut(value)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
