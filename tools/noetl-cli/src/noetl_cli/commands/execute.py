"""`noetl execute`: start a playbook of the catalog, and return when it has started."""

import sys

import click

from noetl_cli.commands.run import RunRequest, run_request
from noetl_cli.connection import FindServer, takes_server
from noetl_cli.output import Output, output_option
from noetl_cli.sources import read_source, shown_name
from noetl_cli.variables import merge_settings, read_payload

_NOUN = "playbook"


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[playbook] PATH")
@click.option("--version", default=0, type=click.IntRange(min=0), help="Its version [default: the newest].")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a variable; the value is JSON if it is that, else text; dots nest. May be given several times.",
)
@click.option("--payload", metavar="JSON|FILE", help="Variables: a JSON object, a file with one, or - for stdin.")
@click.option("--follow/--no-follow", default=False, help="Show progress until the end [default: return at once].")
@click.option("--timeout", "timeout_seconds", type=click.FloatRange(min=0.0), help="Seconds to wait for the end.")
@click.option("--start-key", default="", metavar="KEY", help="The same key again finds the first execution.")
@output_option
@takes_server
def execute(
    *,
    words: tuple[str, ...],
    version: int,
    settings: tuple[str, ...],
    payload: str | None,
    follow: bool,
    timeout_seconds: float | None,
    start_key: str,
    output: Output,
    find_server: FindServer,
) -> None:
    """Start the playbook that is registered as PATH.

    \b
    Examples:
      noetl execute examples/hello_world --set who=Ada
      noetl execute examples/hello_world --payload '{"who": "Ada"}' --json | jq -r .execution_id
      noetl execute examples/hello_world --version 2 --follow
    """
    request = RunRequest(
        file=None,
        content="",
        path=path_of(words),
        version=version,
        payload=merge_settings(_variables(payload), settings),
        start_key=start_key,
        follow=follow,
        timeout_seconds=timeout_seconds,
        output=output,
    )
    sys.exit(run_request(request, find_server()))


def path_of(words: tuple[str, ...]) -> str:
    """What was named; the noun before it says nothing, and is there in many scripts."""
    named = words[1:] if len(words) > 1 and words[0] == _NOUN else words
    if len(named) != 1:
        raise click.UsageError("name one playbook")
    return named[0]


def _variables(payload: str | None) -> dict[str, object]:
    if payload is None:
        return {}
    if payload.lstrip().startswith("{"):
        return read_payload(payload, source="--payload")
    return read_payload(read_source(payload), source=shown_name(payload))
