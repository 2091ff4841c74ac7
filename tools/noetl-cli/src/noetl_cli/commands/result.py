"""`noetl result`: what the steps of an execution returned, read from where payloads are kept."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import click
from noetl_core.errors import NoetlError, NotFound, Rejected
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


async def show_last_result(state: State, server: Server) -> None:
    """The result of the step that ended last, as one line, where it can be read from here."""
    ended = [
        (command.stream_version, command.step)
        for command in state.commands.values()
        if state.execution.steps[command.step].result is not None
    ]
    if server.payload_url is None or not ended:
        return
    step = max(ended)[1]
    try:
        value = await _read(server.payload_url, state.execution.steps[step].result or {})
    except NoetlError:
        return  # it is a courtesy; `noetl result` says what is wrong
    click.echo(f"result of {step}: {_shown(value)}")


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
    return {name: await _read(server.payload_url, steps[name]["result"]) for name in wanted}


async def _read(payload_url: str, result: Mapping[str, Any]) -> Any:
    # Imported here: the payload store is needed by this command alone, and only on a machine with a stack.
    from noetl_cli.dev.payloads import read_json  # noqa: PLC0415

    return await read_json(payload_url, result.get("reference"))


def _shown(value: Any) -> str:
    text = one_line(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
