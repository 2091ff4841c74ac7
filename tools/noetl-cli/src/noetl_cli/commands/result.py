"""`noetl result`: what the steps of an execution returned, read from where payloads are kept."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import click
from noetl_core.canonical import JsonValue
from noetl_core.errors import NoetlError, NotFound
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State
from noetl_core.payloads import payload_ref_of
from noetl_core.ports.event_log import Scope
from noetl_servicekit.chunk_rows import LoadRows, is_streamed
from noetl_servicekit.loop_results import LoopResults, is_loop_reference

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import Clients, FindServer, Server, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.steps import step_lines
from noetl_cli.shown.text import one_line
from noetl_cli.tables import StoredTables

_LONGEST_SHOWN = 500


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.argument("step", required=False)
@output_option
@takes_server
def result(*, execution_id: int, step: str | None, output: Output, find_server: FindServer) -> None:
    """Show what the steps of an execution returned, or one STEP.

    Large results are better looked at with `noetl payload`.

    \b
    Examples:
      noetl result 271828182845904523
      noetl result 271828182845904523 greet -o json | jq .result
    """
    results = asyncio.run(_results(find_server(), execution_id, step))
    if step is not None:
        value = results[step]
        if output is Output.JSON:
            echo_json({"execution_id": str(execution_id), "step": step, "result": value})
        else:
            click.echo(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
    elif output is Output.JSON:
        echo_json({"execution_id": str(execution_id), "results": results})
    else:
        for name, value in results.items():
            click.echo(f"{name}: {_shown(value)}")


async def show_outcome(state: State, server: Server) -> None:
    """What the last step returned, or where the failed one failed."""
    execution = state.execution
    failed = (execution.error or {}).get("step")
    step = failed if isinstance(failed, str) and failed in execution.steps else _last_step(state)
    if step is None or not (execution.steps[step].result or {}).get("reference"):
        return
    try:
        async with connected(server) as clients:
            scope = Scope(tenant_id=execution.tenant_id, organization_id=execution.organization_id)
            value = await _read(clients, scope, execution.execution_id, execution.steps[step].result or {})
    except NoetlError:
        return  # it is a courtesy; `noetl result` says what is wrong
    if execution.status is ExecutionStatus.COMPLETED:
        click.echo(f"result of {step}: {_shown(value)}")
    elif execution.status is ExecutionStatus.FAILED:
        for line in _traceback(value).splitlines():
            click.echo(f"    {one_line(line)}")


def _last_step(state: State) -> str | None:
    have_results = {name for name, step in state.execution.steps.items() if step.result is not None}
    ended = [
        (command.stream_version, command.step)
        for command in state.commands.values()
        if command.evaluation is None and command.step in have_results
    ]
    return max(ended, default=(0, None))[1]


def _traceback(value: Any) -> str:
    """The lines of the user's own code on the way to an exception."""
    facts = value.get("py") if isinstance(value, dict) else None
    return str(facts.get("traceback", "")) if isinstance(facts, dict) else ""


async def _results(server: Server, execution_id: int, step: str | None) -> dict[str, Any]:
    async with connected(server) as clients:
        view = await clients.executions.get(None, execution_id)
        steps = view.state.get("steps", {})
        wanted = [line.step for line in step_lines(view.state) if steps[line.step].get("result") is not None]
        if step is not None:
            if step not in wanted:
                raise NotFound("result of step", step, code="execution.result_not_found")
            wanted = [step]
        scope = Scope(tenant_id=view.tenant_id, organization_id=view.organization_id)
        return {name: await _read(clients, scope, execution_id, steps[name]["result"]) for name in wanted}


async def _read(clients: Clients, scope: Scope, execution_id: int, result: Mapping[str, Any]) -> Any:
    """The value that a result refers to, with the rows that went out in chunks; null when there is none."""
    reference = result.get("reference")
    if not reference:
        return None
    load_rows = LoadRows(clients.payloads, StoredTables())
    if is_loop_reference(reference):
        value: JsonValue = await LoopResults(clients.events, load_rows.values)(scope, execution_id, result)
    else:
        value = await load_rows.values.get(payload_ref_of(reference))
    if not is_streamed(value):
        return value
    return await load_rows(value, tenant_id=scope.tenant_id, organization_id=scope.organization_id)


def _shown(value: Any) -> str:
    text = one_line(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
