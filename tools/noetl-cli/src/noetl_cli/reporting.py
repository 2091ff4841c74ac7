"""How failures are shown: the code, the reason, every problem with its place, and what to do next."""

from collections.abc import Iterator, Sequence
from typing import Any

import click
from noetl_core.errors import (
    NoetlError,
    NotAuthenticated,
    NotPermitted,
    PlaybookInvalid,
    Problem,
)

from noetl_cli.output import Output, echo_json
from noetl_cli.shown.text import one_line


class InFile(PlaybookInvalid):
    """A playbook was refused, and we know which file it came from."""

    def __init__(self, file: str, refused: PlaybookInvalid) -> None:
        super().__init__(refused.problems)
        self.message = refused.message
        self.facts = refused.facts
        self.file = file


def report(error: NoetlError, *, output: Output) -> None:
    """Text goes to stderr; a JSON document goes where the answer would have gone."""
    if output is Output.JSON:
        echo_json(error_document(error))
        return
    for line in error_lines(error):
        click.echo(line, err=True)


def error_document(error: NoetlError) -> dict[str, Any]:
    """The error for programs."""
    document: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "retryable": error.retryable,
        "facts": dict(error.facts),
    }
    if isinstance(error, PlaybookInvalid):
        document["problems"] = [problem_document(problem) for problem in error.problems]
    return {"error": document}


def error_lines(error: NoetlError) -> Iterator[str]:
    """The error for people."""
    if isinstance(error, PlaybookInvalid) and error.problems:
        file = error.file if isinstance(error, InFile) else "playbook"
        yield from problem_lines(error.problems, file=file, severity="error")
        omitted = error.facts.get("problems_omitted")
        if omitted:
            yield f"… and {omitted} more problems"
        return
    first, *rest = error.message.splitlines() or [""]
    yield f"{click.style('error', fg='red', bold=True)}: {one_line(first)} ({error.code})"
    yield from (f"  {one_line(line)}" for line in (*rest, *getattr(error, "__notes__", ())))
    hint = _hint(error)
    if hint is not None:
        yield f"  {hint}"


def problem_lines(problems: Sequence[Problem], *, file: str, severity: str) -> Iterator[str]:
    """Each problem as compilers write them, so that editors can jump to it."""
    colour = "red" if severity == "error" else "yellow"
    for problem in problems:
        place = ":".join([file, *(str(number) for number in (problem.line, problem.column) if number is not None)])
        word = click.style(severity, fg=colour, bold=True)
        yield f"{place}: {word} {problem.code}: {one_line(problem.message)}"
        details = [detail for detail in (problem.path and f"at {problem.path}", problem.suggestion) if detail]
        if details:
            yield f"    {one_line('; '.join(details))}"


def problem_document(problem: Problem) -> dict[str, Any]:
    """A problem for programs; every key is always there."""
    return {
        "code": problem.code,
        "message": problem.message,
        "path": problem.path,
        "line": problem.line,
        "column": problem.column,
        "suggestion": problem.suggestion,
    }


def _hint(error: NoetlError) -> str | None:
    if isinstance(error, NotAuthenticated):
        return "present a token with --token, NOETL_TOKEN or NOETL_TOKEN_FILE"
    if isinstance(error, NotPermitted):
        return "use a token of a role that may do this"
    return None
