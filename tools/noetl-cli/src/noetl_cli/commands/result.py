"""`noetl result`: what the steps of an execution returned, read from where payloads are kept."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import click
from noetl_core.errors import NoetlError, NotFound, Rejected
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State

from noetl_cli.commands.arguments import EXECUTION_ID
from noetl_cli.connection import FindServer, Server, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.steps import step_lines
from noetl_cli.shown.text import one_line

_LONGEST_SHOWN = 500


@click.command()
@click.argument("execution_id", type=EXECUTION_ID, metavar="ID")
@click.argument("step", required=False)
@output_option
@takes_server
def result(*, execution_id: int, step: str | None, output: Output, find_server: FindServer) -> None:
    """Show what the steps of an execution returned, or one STEP.

    Payloads are read from the payload directory of the stack on this machine.

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
    """What the last step returned, or where the failed one failed, if payloads can be read from here."""
    execution = state.execution
    failed = (execution.error or {}).get("step")
    step = failed if isinstance(failed, str) and failed in execution.steps else _last_step(state)
    if server.payload_url is None or step is None:
        return
    try:
        value = await _read(server, execution.execution_id, execution.steps[step].result or {})
    except NoetlError:
        return  # it is a courtesy; `noetl result` says what is wrong
    if execution.status is ExecutionStatus.COMPLETED:
        click.echo(f"result of {step}: {_shown(value)}")
    elif execution.status is ExecutionStatus.FAILED:
        for line in _traceback(value).splitlines():
            click.echo(f"    {one_line(line)}")


def _last_step(state: State) -> str | None:
    steps = state.execution.steps
    ended = [(command.stream_version, command.step) for command in state.commands.values()]
    return max((pair for pair in ended if steps[pair[1]].result is not None), default=(0, None))[1]


def _traceback(value: Any) -> str:
    """The lines of the user's own code on the way to an exception."""
    facts = value.get("py") if isinstance(value, dict) else None
    return str(facts.get("traceback", "")) if isinstance(facts, dict) else ""


async def _results(server: Server, execution_id: int, step: str | None) -> dict[str, Any]:
    if server.payload_url is None:
        raise Rejected(
            "results can only be read where their payloads are: on the machine whose stack ran the execution"
        )
    async with connected(server) as clients:
        view = await clients.executions.get(None, execution_id)
    steps = view.state.get("steps", {})
    wanted = [line.step for line in step_lines(view.state) if steps[line.step].get("result") is not None]
    if step is not None:
        if step not in wanted:
            raise NotFound("result of step", step, code="execution.result_not_found")
        wanted = [step]
    return {name: await _read(server, execution_id, steps[name]["result"]) for name in wanted}


async def _read(server: Server, execution_id: int, result: Mapping[str, Any]) -> Any:
    # Imported here: the payload store is needed by this command alone, and only on a machine with a stack.
    from noetl_cli.dev.payloads import is_loop_reference, read_json, read_loop  # noqa: PLC0415

    payload_url, reference = server.payload_url or "", result.get("reference")
    if not is_loop_reference(reference):
        return await read_json(payload_url, reference)
    async with connected(server) as clients:
        return await read_loop(payload_url, clients.events, execution_id, result)


def _shown(value: Any) -> str:
    text = one_line(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
