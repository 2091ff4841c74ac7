"""`noetl credential rotate` and `new-key`: the keys under which credentials are kept."""

import asyncio
import sys
from pathlib import Path

import click
from noetl_core.ports.credentials import RotatedPage, UnreadableCredential

from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.credential_keys import add_key
from noetl_cli.exits import ExitCode
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.credentials import unreadable_document


@click.command()
@output_option
@takes_server
def rotate(*, output: Output, find_server: FindServer) -> None:
    """Encrypt everything with the current key, so that the keys from before can go.

    It can be interrupted and repeated. An admin rotates the credentials of its organization, a service everybody's.
    Exits with 1 if there are credentials that no key opens; they are left as they are.

    \b
    Example:
      noetl credential new-key --keys-file credential.keys && noetl credential rotate
    """

    async def rotate_all() -> tuple[str, int, list[UnreadableCredential]]:
        rotated, unreadable, page = 0, list[UnreadableCredential](), RotatedPage(key_id="", rotated=0)
        async with connected(find_server()) as clients:
            while True:
                page = await clients.credentials.rotate(None, page_token=page.next_page_token)
                rotated += page.rotated
                unreadable += page.unreadable
                if not page.next_page_token:
                    return page.key_id, rotated, unreadable

    key_id, rotated, unreadable = asyncio.run(rotate_all())
    if output is Output.JSON:
        documents = [unreadable_document(one) for one in unreadable]
        echo_json({"key_id": key_id, "rotated": rotated, "unreadable": documents})
    else:
        click.echo(f"{rotated} moved to key {key_id}" if rotated else f"nothing to move to key {key_id}")
        for one in unreadable:
            place = f"{one.tenant_id}/{one.organization_id}"
            click.echo(f"no key opens {one.name!r} of {place}: it was stored with {one.key_id!r}", err=True)
    sys.exit(ExitCode.FAILED if unreadable else ExitCode.OK)


@click.command("new-key")
@click.option(
    "--keys-file",
    required=True,
    envvar="NOETL_CREDENTIAL_KEYS_FILE",
    show_envvar=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that api reads; made if it is not there.",
)
@click.option("--id", "key_id", default="", metavar="ID", help="What to call the key [default: by its date].")
@output_option
def new_key(*, keys_file: Path, key_id: str, output: Output) -> None:
    """Make a random key and put it first in the keys file: from now on it encrypts what is stored.

    The keys from before stay, since they decrypt; after `noetl credential rotate` they can be removed.
    """
    made = add_key(keys_file, key_id=key_id)
    if output is Output.JSON:
        echo_json({"key_id": made, "keys_file": str(keys_file)})
    else:
        click.echo(f"{keys_file}: {made} is the current key")
