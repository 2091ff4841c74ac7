"""`noetl why` and `noetl workers`: why nothing happens, and who could make it happen."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime

import click
from noetl_contracts.clients import ExplainedExecution
from noetl_core.ports.workers import PresentWorker

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.durations import clock_text, span_text, time_text
from noetl_cli.shown.executions import status_text
from noetl_cli.shown.tables import table_lines
from noetl_cli.shown.text import one_line


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@output_option
@takes_server
def why(*, execution_id: int, output: Output, find_server: FindServer) -> None:
    """Tell what an execution is waiting for, and since when.

    Running calls with their workers, calls that no worker takes, joins, children, pauses: most pressing first.

    \b
    Examples:
      noetl why 271828182845904523
      noetl why 271828182845904523 -o json | jq -r '.reasons[].kind'
    """

    async def ask() -> ExplainedExecution:
        async with connected(find_server()) as clients:
            return await clients.why.explain(None, execution_id)

    explained = asyncio.run(ask())
    if output is Output.TEXT:
        for line in _lines(explained):
            click.echo(line)
        return
    echo_json(
        {
            "execution_id": str(explained.execution_id),
            "status": explained.status,
            "stream_version": explained.stream_version,
            "as_of": time_text(explained.as_of),
            "reasons": [
                {
                    "kind": reason.kind.value,
                    "step": reason.step or None,
                    "since": time_text(reason.since),
                    "text": reason.text,
                    "details": dict(reason.details),
                }
                for reason in explained.reasons
            ],
        }
    )


def _lines(explained: ExplainedExecution) -> Iterator[str]:
    yield f"execution {explained.execution_id} is {status_text(explained.status)}"
    for reason in explained.reasons:
        yield f"- {one_line(reason.text)}{_since(reason.since, explained.as_of)}"


def _since(since: datetime | None, now: datetime) -> str:
    if since is None:
        return ""
    return f" (since {clock_text(since)}, {span_text((now - since).total_seconds())} ago)"


@click.command()
@click.option("--pool", default="", metavar="POOL", help="Only those of one pool.")
@output_option
@takes_server
def workers(*, pool: str, output: Output, find_server: FindServer) -> None:
    """List the workers that were heard of lately, and how busy they are.

    \b
    Example:
      noetl workers --pool default -o json | jq '[.workers[].free] | add'
    """

    async def ask() -> Sequence[PresentWorker]:
        async with connected(find_server()) as clients:
            return await clients.workers.list(pool=pool)

    present = asyncio.run(ask())
    if output is Output.JSON:
        echo_json({"workers": [_document(worker) for worker in present]})
        return
    rows = [("WORKER", "POOL", "BUSY", "SLOTS", "HEARD OF")]
    for worker in present:
        report = worker.report
        rows.append((report.worker_id, report.pool, str(report.busy), str(report.slots), clock_text(worker.heard_at)))
    for line in table_lines(rows) if present else ["no workers"]:
        click.echo(line)


def _document(worker: PresentWorker) -> dict[str, object]:
    report = worker.report
    return {
        "worker_id": report.worker_id,
        "pool": report.pool,
        "slots": report.slots,
        "busy": report.busy,
        "free": max(report.slots - report.busy, 0),
        "kinds": [*report.kinds],
        "version": report.version,
        "started_at": time_text(worker.started_at),
        "heard_at": time_text(worker.heard_at),
    }
