"""`noetl playbook`: check playbooks without a server."""

import sys
from dataclasses import dataclass
from typing import Any

import click
from noetl_core.errors import PlaybookInvalid, Problem
from noetl_core.playbook.schema import playbook_schema
from noetl_core.playbook.support import release_with
from noetl_core.playbook.validate import parse_playbook

from noetl_cli.exits import ExitCode
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.reporting import problem_document, problem_lines
from noetl_cli.sources import SOURCE_FILE, read_playbook, shown_name


@click.group()
def playbook() -> None:
    """Write playbooks."""


@playbook.command()
@click.argument("files", nargs=-1, required=True, type=SOURCE_FILE, metavar="FILE...")
@click.option(
    "--plugin-kind",
    "plugin_kinds",
    multiple=True,
    metavar="KIND",
    help="A tool kind that a plug-in provides; repeatable.",
)
@output_option
def validate(*, files: tuple[str, ...], plugin_kinds: tuple[str, ...], output: Output) -> None:
    """Check playbooks as registration would, and list every problem with its line.

    Needs no server. Exits with 2 if any of them would be refused; warnings do not count.

    \b
    Examples:
      noetl playbook validate hello.yaml
      noetl playbook validate examples/playbooks/*.yaml -o json | jq '.files[] | select(.valid | not)'
    """
    checked = [_check(file, plugin_kinds) for file in files]
    are_valid = not any(one.problems for one in checked)
    if output is Output.JSON:
        echo_json({"valid": are_valid, "files": [one.document() for one in checked]})
    else:
        for one in checked:
            one.show()
    sys.exit(ExitCode.OK if are_valid else ExitCode.INVALID)


@playbook.command()
def schema() -> None:
    """Print the JSON Schema of playbooks, for editors that complete and check them.

    Needs no server.

    \b
    Examples:
      noetl playbook schema > playbook.schema.json
      # then, in the first line of a playbook:
      # yaml-language-server: $schema=./playbook.schema.json
    """
    echo_json(playbook_schema())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """What was found in one file."""

    file: str
    path: str | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "file": self.file,
            "valid": not self.problems,
            "path": self.path,
            "problems": [problem_document(problem) for problem in self.problems],
            "warnings": [problem_document(warning) for warning in self.warnings],
        }

    def show(self) -> None:
        """For people."""
        for line in problem_lines(self.problems, file=self.file, severity="error"):
            click.echo(line)
        for line in problem_lines(self.warnings, file=self.file, severity="warning"):
            click.echo(line)
        if not self.problems:
            click.echo(f"{self.file}: ok")


def _check(file: str, plugin_kinds: tuple[str, ...]) -> _Checked:
    name = shown_name(file)
    try:
        parsed, warnings = parse_playbook(read_playbook(file), supported=release_with(plugin_kinds))
    except PlaybookInvalid as exc:
        return _Checked(file=name, problems=exc.problems)
    return _Checked(file=name, path=parsed.path, warnings=warnings)
