"""Runs the `noetl` command, and turns however it ended into an exit code."""

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click
from noetl_core.errors import NoetlError
from noetl_servicekit.memory import collect_rarely

from noetl_cli.app import app
from noetl_cli.exits import ExitCode, exit_code_of_error
from noetl_cli.output import Output, chosen_output
from noetl_cli.reporting import report


def main() -> NoReturn:
    """The program."""
    # Most of what a command makes is what it loads, and that stays until its end: to look for garbage in it, while it
    # is loaded and once more at the end, takes a sixth of a short command.
    collect_rarely()
    code = run(sys.argv[1:])
    gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """The exit code; nothing but a defect comes out as an exception."""
    context: click.Context | None = None
    try:
        with app.make_context("noetl", list(arguments)) as context:
            app.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else ExitCode.OK
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except NoetlError as exc:
        report(exc, output=chosen_output(context))
        return exit_code_of_error(exc)
    except (KeyboardInterrupt, click.Abort):
        if chosen_output(context) is Output.TEXT:
            click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; without this the interpreter would complain at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    return ExitCode.OK


if __name__ == "__main__":
    main()
