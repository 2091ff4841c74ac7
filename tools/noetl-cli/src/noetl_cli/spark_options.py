"""How commands are told where their Spark jobs run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def takes_spark(command: Command) -> Command:
    """Adds `jobs`, `master` and `memory`."""
    for option in (_MEMORY, _MASTER, _JOBS):
        command = option(command)
    return command


_JOBS = click.option("--jobs", type=click.IntRange(min=1, max=1024), help="Tasks at once [default: one a processor].")
_MASTER = click.option(
    "--master", default="", metavar="URL", help="Spark's master, such as spark://HOST:PORT [default: local]."
)
_MEMORY = click.option("--memory", default="1g", show_default=True, help="Of Spark's driver, and of each executor.")
