"""Arguments that several commands share."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from noetl_core.errors import InvalidInput, PlaybookInvalid
from noetl_core.ids import parse_id
from noetl_core.locator import SCHEME

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


class LocatorType(click.ParamType[str]):
    """A noetl:// address, or a reference as JSON, on the line or from stdin."""

    name = "reference"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = (sys.stdin.read() if value == "-" else str(value)).strip()
        if text.startswith(SCHEME):
            return text
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        while isinstance(document, dict) and isinstance(inner := document.get("_ref", document.get("reference")), dict):
            document = inner  # the view of a large result, or a whole result
        address = (document.get("uri") or document.get("ref_id")) if isinstance(document, dict) else None
        if not isinstance(address, str):
            self.fail(f"{text[:80]!r} is neither an address ({SCHEME}…) nor one reference as JSON", param, ctx)
        return address


EXECUTION_ID = ExecutionIdType()
LOCATOR = LocatorType()


@contextmanager
def naming_the_file(file: str) -> Iterator[None]:
    """Problems of a playbook are shown with the file in which they are."""
    try:
        yield
    except PlaybookInvalid as exc:
        raise InFile(shown_name(file), exc) from exc
