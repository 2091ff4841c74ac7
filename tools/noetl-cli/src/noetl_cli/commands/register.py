"""`noetl register`: the shorter way to `noetl catalog register`."""

import click

from noetl_cli.commands.catalog import register_file
from noetl_cli.commands.execute import path_of
from noetl_cli.connection import FindServer, takes_server
from noetl_cli.output import Output, output_option
from noetl_cli.sources import SOURCE_FILE


@click.command()
@click.argument("words", nargs=-1, metavar="[playbook] FILE")
@click.option("-f", "--file", type=SOURCE_FILE, help="Another way to name the file.")
@output_option
@takes_server
def register(*, words: tuple[str, ...], file: str | None, output: Output, find_server: FindServer) -> None:
    """Register the playbook in FILE as a new version.

    The same content as the newest version stays that version. A broken playbook is refused with every problem and
    its line, exit code 2, and nothing is stored.

    \b
    Examples:
      noetl register hello.yaml
      noetl register playbook -f hello.yaml --json
    """
    if file is not None and words not in ((), ("playbook",)):
        raise click.UsageError("name one FILE")
    name = file if file is not None else SOURCE_FILE.convert(path_of(words), None, click.get_current_context())
    register_file(str(name), output, find_server)
