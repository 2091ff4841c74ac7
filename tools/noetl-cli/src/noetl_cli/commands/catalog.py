"""`noetl catalog`: playbooks that are registered, by path and version."""

import asyncio

import click
from noetl_core.ports.catalog import CatalogPage, PlaybookSource, Registered

from noetl_cli.commands.arguments import naming_the_file
from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.reporting import problem_lines
from noetl_cli.shown.catalog import entry_document, entry_lines, registered_document, registered_line
from noetl_cli.sources import SOURCE_FILE, read_playbook, shown_name


@click.group()
def catalog() -> None:
    """Register playbooks and find them again."""


@catalog.command()
@click.argument("file", type=SOURCE_FILE)
@output_option
@takes_server
def register(*, file: str, output: Output, find_server: FindServer) -> None:
    """Register the playbook in FILE as a new version.

    The same content as the newest version stays that version. A broken playbook is refused with every problem and
    its line, exit code 2, and nothing is stored.

    \b
    Example:
      noetl catalog register hello.yaml
    """
    register_file(file, output, find_server)


def register_file(file: str, output: Output, find_server: FindServer) -> None:
    """Register it, and show what came of it."""

    async def send(content: str) -> Registered:
        async with connected(find_server()) as clients:
            return await clients.catalog.register(None, content)

    with naming_the_file(file):
        registered = asyncio.run(send(read_playbook(file)))
    if output is Output.JSON:
        echo_json(registered_document(registered))
        return
    click.echo(registered_line(registered))
    for line in problem_lines(registered.warnings, file=shown_name(file), severity="warning"):
        click.echo(line, err=True)


@catalog.command("list")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@click.option("--page-token", default="", metavar="TOKEN", help="Go on where the last list ended.")
@output_option
@takes_server
def list_playbooks(*, limit: int, page_token: str, output: Output, find_server: FindServer) -> None:
    """List the newest version of every playbook."""

    async def get() -> CatalogPage:
        async with connected(find_server()) as clients:
            return await clients.catalog.list(None, page_size=limit, page_token=page_token)

    _show_page(asyncio.run(get()), output)


@catalog.command()
@click.argument("path")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@click.option("--page-token", default="", metavar="TOKEN", help="Go on where the last list ended.")
@output_option
@takes_server
def versions(*, path: str, limit: int, page_token: str, output: Output, find_server: FindServer) -> None:
    """List the versions of the playbook at PATH, newest first."""

    async def get() -> CatalogPage:
        async with connected(find_server()) as clients:
            return await clients.catalog.versions(None, path, page_size=limit, page_token=page_token)

    _show_page(asyncio.run(get()), output)


@catalog.command()
@click.argument("path")
@click.option("--version", default=0, type=click.IntRange(min=0), help="Which one [default: the newest].")
@output_option
@takes_server
def get(*, path: str, version: int, output: Output, find_server: FindServer) -> None:
    """Print the playbook at PATH, exactly as it was registered.

    \b
    Example:
      noetl catalog get examples/hello_world --version 2 > hello.yaml
    """

    async def fetch() -> PlaybookSource:
        async with connected(find_server()) as clients:
            return await clients.catalog.get(None, path=path, version=version)

    source = asyncio.run(fetch())
    if output is Output.JSON:
        echo_json({**entry_document(source.entry), "content": source.content})
    else:
        click.echo(source.content, nl=not source.content.endswith("\n"))


def _show_page(page: CatalogPage, output: Output) -> None:
    if output is Output.JSON:
        documents = [entry_document(entry) for entry in page.entries]
        echo_json({"entries": documents, "next_page_token": page.next_page_token or None})
        return
    for line in entry_lines(page.entries) if page.entries else ["no playbooks"]:
        click.echo(line)
    if page.next_page_token:
        click.echo(f"there are more: --page-token {page.next_page_token}")
