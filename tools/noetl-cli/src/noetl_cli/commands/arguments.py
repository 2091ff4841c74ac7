"""Arguments that several commands share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from noetl_core.errors import InvalidInput, PlaybookInvalid
from noetl_core.ids import parse_id

from noetl_cli.reporting import InFile
from noetl_cli.sources import shown_name


class ExecutionIdType(click.ParamType[int]):
    """Digits, as every answer shows them."""

    name = "execution id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_id(value, what="an execution id")
        except InvalidInput as exc:
            self.fail(exc.message, param, ctx)


EXECUTION_ID = ExecutionIdType()


@contextmanager
def naming_the_file(file: str) -> Iterator[None]:
    """Problems of a playbook are shown with the file in which they are."""
    try:
        yield
    except PlaybookInvalid as exc:
        raise InFile(shown_name(file), exc) from exc
