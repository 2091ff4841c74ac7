"""The command line, as its own `--help` tells it."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import click
from noetl_cli.app import app

from scripts.reference.markdown import code, page, table

INTRODUCTION = """
Every command has `--help`. Answers are text for people; `-o json` (or `--json`) prints one document with stable keys
for programs, and exit codes tell what happened ([errors](errors.md#exit-codes-of-the-command-line)). `--address` and
`--token` name a server; without them the commands use the stack that `noetl dev up` has started.
"""


def cli_page() -> str:
    """Command by command."""
    root = click.Context(app, info_name="noetl")
    return page("Command line", INTRODUCTION, *_commands(app, root))


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _commands(child, click.Context(child, info_name=name, parent=context))
        return
    arguments = " ".join(
        parameter.make_metavar(context) for parameter in command.params if isinstance(parameter, click.Argument)
    )
    title = f"{context.command_path} {arguments}".strip()
    options = [
        parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    rows = [(code("/".join(option.opts)), _help(option)) for option in options if option.name not in _EVERYWHERE]
    listed = table(("option", "meaning"), rows) if rows else ""
    yield "\n\n".join(part for part in (f"## {title}", _text(command.help or ""), listed) if part)


_EVERYWHERE = frozenset({"address", "token", "output", "json"})


def _help(option: click.Option) -> str:
    return (option.help or "").strip()


def _text(help_text: str) -> str:
    """Paragraphs, and examples as they are written."""
    blocks = []
    for block in cleandoc(help_text).split("\n\n"):
        if block.startswith("\b"):
            title, *lines = block.removeprefix("\b").strip("\n").splitlines()
            blocks.append(f"{title.strip()}\n\n```bash\n" + "\n".join(line.strip() for line in lines) + "\n```")
        else:
            blocks.append(" ".join(block.split()))
    return "\n\n".join(blocks)
