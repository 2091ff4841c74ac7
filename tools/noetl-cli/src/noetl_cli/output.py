"""The two forms of every answer: text for people, and one JSON document for programs."""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_META_KEY = "noetl_cli.output"


class Output(StrEnum):
    """What `-o` chooses."""

    TEXT = "text"
    JSON = "json"


def output_option(command: Command) -> Command:
    """Adds `-o text|json`; the command gets it as `output`."""
    as_json = click.option(
        "--json", is_flag=True, is_eager=True, expose_value=False, callback=_remember_json, help="The same as -o json."
    )
    option = click.option(
        "-o",
        "--output",
        type=click.Choice([form.value for form in Output]),
        default=Output.TEXT.value,
        show_default=True,
        callback=_remember,
        help="text for people, json for programs: one document with stable keys, ids as strings.",
    )
    return option(as_json(command))


def chosen_output(context: click.Context | None) -> Output:
    """What the command that runs in this context was asked for; for those who report its failure."""
    found = context.meta.get(_META_KEY) if context is not None else None
    return found if isinstance(found, Output) else Output.TEXT


def echo_json(document: Mapping[str, Any]) -> None:
    """One document, indented, since people read it too."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def echo_json_line(document: Mapping[str, Any]) -> None:
    """One document of several, on a line of its own."""
    click.echo(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _remember_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_META_KEY] = Output.JSON


def _remember(context: click.Context, parameter: click.Parameter, value: str) -> Output:
    is_written = context.get_parameter_source(parameter.name or "") is not click.core.ParameterSource.DEFAULT
    output = Output(value) if is_written else chosen_output(context)
    context.meta[_META_KEY] = output
    return output
