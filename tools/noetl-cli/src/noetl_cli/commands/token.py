"""`noetl token`: who may call the servers."""

from dataclasses import asdict
from pathlib import Path

import click
from noetl_servicekit.callers import ANY

from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.tokens import ROLES, add_token, entry_for, new_token


@click.group()
def token() -> None:
    """Make tokens for people, programs and services."""


@token.command()
@click.option("--name", required=True, help="Whose it is; shown in logs and events.")
@click.option("--tenant", default="default", show_default=True, help=f"Its tenant; {ANY} only for a service.")
@click.option("--organization", default="default", show_default=True, help=f"Its organization; {ANY} as above.")
@click.option("--role", type=click.Choice(ROLES), default="writer", show_default=True)
@click.option(
    "--tokens-file",
    required=True,
    envvar="NOETL_TOKENS_FILE",
    show_envvar=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that the servers read; made if it is not there.",
)
@output_option
def create(*, name: str, tenant: str, organization: str, role: str, tokens_file: Path, output: Output) -> None:
    """Make a random token and print it, this once.

    Only its SHA-256 is kept, in the tokens file; running servers notice within a second.

    \b
    Examples:
      noetl token create --name ada --tokens-file /etc/noetl/tokens.json
      noetl token create --name planner --role service --tenant '*' --organization '*' --tokens-file tokens.json
    """
    made = new_token()
    entry = entry_for(made, name=name, tenant_id=tenant, organization_id=organization, role=role)
    add_token(tokens_file, entry)
    if output is Output.JSON:
        echo_json({**asdict(entry), "token": made, "tokens_file": str(tokens_file)})
        return
    click.echo(made)
    click.echo(f"kept in {tokens_file} as a {role} of {tenant}/{organization}; it is not shown again", err=True)
