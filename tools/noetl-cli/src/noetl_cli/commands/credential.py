"""`noetl credential`: secrets that playbooks refer to by name."""

import asyncio
import json
from collections.abc import Sequence

import click
from noetl_core.canonical import JsonObject, decode
from noetl_core.credentials import CredentialInvalid, checked_credential, credential_of
from noetl_core.errors import NotCanonical
from noetl_core.ports.credentials import Credential, CredentialInfo, CredentialPage, StoredCredential

from noetl_cli.commands.credential_keys import new_key, rotate
from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.credentials import credential_document, credential_lines, list_lines
from noetl_cli.sources import SOURCE_FILE, read_source, shown_name


@click.group()
def credential() -> None:
    """Keep the secrets that playbooks refer to by name.

    They are encrypted where they are kept, and no command shows them unless an admin asks for them.
    """


@credential.command()
@click.argument("name")
@click.option("--type", "type_name", default="", metavar="TYPE", help="What it opens, such as postgres.")
@click.option("--data-file", type=SOURCE_FILE, help="The secrets: a JSON object in a file, or - for stdin.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=TEXT",
    help="One more of them, always as text; others on this machine can see it in `ps`. May be given several times.",
)
@click.option("--description", default="", help="What it is for.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A label. May be given several times.")
@output_option
@takes_server
def put(
    *,
    name: str,
    type_name: str,
    data_file: str | None,
    settings: tuple[str, ...],
    description: str,
    tags: tuple[str, ...],
    output: Output,
    find_server: FindServer,
) -> None:
    """Store a credential as NAME, in place of the one that is there.

    \b
    Examples:
      noetl credential put orders_db --type postgres --data-file orders_db.json
      noetl credential put orders_db --type postgres --set db_host=db --set db_user=etl --data-file - < password.json
    """
    if data_file is None and not settings:
        raise click.UsageError("give the secrets with --data-file, --set or both")
    data = _read_object(data_file) if data_file is not None else {}
    given = checked_credential(
        name=name, type_name=type_name, description=description, tags=tags, data={**data, **_settings(settings)}
    )
    _show_stored(_store(given, find_server), output)


@credential.command()
@click.argument("file", type=SOURCE_FILE)
@output_option
@takes_server
def register(*, file: str, output: Output, find_server: FindServer) -> None:
    """Store the credential that FILE describes: {"name", "type", "description", "tags", "data"}.

    \b
    Example:
      noetl credential register credentials/orders_db.json
    """
    _show_stored(_store(credential_of(_read_object(file)), find_server), output)


@credential.command()
@click.argument("name")
@click.option("--include-data", is_flag=True, help="Show the secrets too; takes an admin, and is noted.")
@output_option
@takes_server
def get(*, name: str, include_data: bool, output: Output, find_server: FindServer) -> None:
    """Show the credential NAME, without its secrets.

    \b
    Examples:
      noetl credential get orders_db
      noetl credential get orders_db --include-data -o json | jq -r .data.db_password
    """

    async def fetch() -> tuple[CredentialInfo, Credential | None]:
        async with connected(find_server()) as clients:
            if include_data:
                return await clients.credentials.reveal(None, name)
            return await clients.credentials.get(None, name), None

    info, revealed = asyncio.run(fetch())
    data = {"data": dict(revealed.data)} if revealed is not None else {}
    if output is Output.JSON:
        echo_json({**credential_document(info), **data})
        return
    for line in credential_lines(info):
        click.echo(line)
    for value in data.values():
        click.echo(f"data:\n{json.dumps(value, indent=2)}")  # ASCII only: no terminal takes a secret for a command


@credential.command("list")
@click.option("--type", "type_name", default="", metavar="TYPE", help="Only this type.")
@click.option("--contains", default="", metavar="TEXT", help="Only those with this in their name or description.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@click.option("--page-token", default="", metavar="TOKEN", help="Go on where the last list ended.")
@output_option
@takes_server
def list_credentials(
    *, type_name: str, contains: str, limit: int, page_token: str, output: Output, find_server: FindServer
) -> None:
    """List credentials by name, never with their secrets."""

    async def fetch() -> CredentialPage:
        async with connected(find_server()) as clients:
            return await clients.credentials.list(
                None, type_name=type_name, contains=contains, page_size=limit, page_token=page_token
            )

    page = asyncio.run(fetch())
    if output is Output.JSON:
        documents = [credential_document(info) for info in page.credentials]
        echo_json({"credentials": documents, "next_page_token": page.next_page_token or None})
        return
    for line in list_lines(page.credentials) if page.credentials else ["no credentials"]:
        click.echo(line)
    if page.next_page_token:
        click.echo(f"there are more: --page-token {page.next_page_token}")


@credential.command()
@click.argument("name")
@output_option
@takes_server
def delete(*, name: str, output: Output, find_server: FindServer) -> None:
    """Remove the credential NAME; calls that begin later do not find it."""

    async def remove() -> CredentialInfo:
        async with connected(find_server()) as clients:
            return await clients.credentials.delete(None, name)

    info = asyncio.run(remove())
    if output is Output.JSON:
        echo_json({**credential_document(info), "deleted": True})
    else:
        click.echo(f"{info.name}: deleted")


credential.add_command(rotate)
credential.add_command(new_key)


def _store(given: Credential, find_server: FindServer) -> StoredCredential:
    async def send() -> StoredCredential:
        async with connected(find_server()) as clients:
            return await clients.credentials.put(None, given)

    return asyncio.run(send())


def _show_stored(stored: StoredCredential, output: Output) -> None:
    if output is Output.JSON:
        echo_json({**credential_document(stored.info), "created": stored.created})
    else:
        click.echo(f"{stored.info.name}: {'stored' if stored.created else 'replaced'}")


def _read_object(file: str) -> JsonObject:
    """What is wrong is said without the text: it holds secrets."""
    try:
        document = decode(read_source(file).encode())
    except NotCanonical as exc:
        raise CredentialInvalid(f"{shown_name(file)} cannot be read: {exc.message}") from None
    if not isinstance(document, dict):
        raise CredentialInvalid(f"{shown_name(file)} must hold a JSON object")
    return document


def _settings(settings: Sequence[str]) -> dict[str, str]:
    data: dict[str, str] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise CredentialInvalid("--set takes KEY=TEXT, such as db_host=db.example")
        data[key] = value
    return data
