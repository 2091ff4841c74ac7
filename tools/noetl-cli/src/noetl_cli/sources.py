"""Documents that a command is given: a file, or `-` for what comes in on stdin."""

import sys
from pathlib import Path

import click
from noetl_core.errors import InvalidInput, PlaybookInvalid, Problem

STDIN = "-"

SOURCE_FILE = click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True)


def read_source(file: str) -> str:
    """The text of the document."""
    try:
        return _read(file).decode("utf-8")
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{shown_name(file)} is not UTF-8 text: {exc.reason} at byte {exc.start}") from exc


def read_playbook(file: str) -> str:
    """The text of a playbook; what is wrong with it is said as about every playbook."""
    data = _read(file)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        message = f"the document is not UTF-8: {exc.reason}"
        raise PlaybookInvalid([Problem(code="playbook.yaml_invalid", message=message, line=line)]) from exc


def shown_name(file: str) -> str:
    """How messages call it."""
    return "<stdin>" if file == STDIN else file


def _read(file: str) -> bytes:
    if file == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as exc:
        raise InvalidInput(f"{file} cannot be read: {exc.strerror}") from exc
