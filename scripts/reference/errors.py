"""Errors: what the API answers, what registration says, and how calls of tools fail."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import noetl_core
from noetl_cli.exits import MEANINGS, exit_code_of_error
from noetl_contracts.status import wire_status
from noetl_core.errors import NoetlError
from noetl_worker.application.outcome import ErrorKind

from scripts.reference.markdown import code, page, table

ROOT = Path(__file__).parents[2]
INTRODUCTION = """
Every answer of the API that is an error has a stable `code`: over HTTP as `application/problem+json` (RFC 9457), over
gRPC in the details of the status. Programs look at the code, never at the text.
"""


def errors_page() -> str:
    """All tables."""
    return page("Errors", INTRODUCTION, _api(), _registration(), _outcomes(), _exits())


def _api() -> str:
    _import_all()
    rows = []
    for error in sorted(_classes(NoetlError), key=lambda one: (one.code, one.__name__)):
        status = wire_status(error)
        instance = error.__new__(error)
        rows.append(
            (
                code(error.code),
                str(status.http_status),
                status.grpc_code.name,
                str(int(exit_code_of_error(instance))),
                _summary(error),
            )
        )
    return "## Codes of the API\n\n" + table(("code", "HTTP", "gRPC", "exit code", "means"), rows)


def _import_all() -> None:
    for module in pkgutil.walk_packages(noetl_core.__path__, "noetl_core."):
        importlib.import_module(module.name)


def _classes(root: type[NoetlError]) -> set[type[NoetlError]]:
    """Those of the core: what the API can answer."""
    found = {root}
    for child in root.__subclasses__():
        found |= _classes(child)
    return {one for one in found if one.__module__.startswith("noetl_core")}


def _registration() -> str:
    """Codes that the checks of documents use, by where they stand in the source."""
    folder = ROOT / "libs" / "noetl-core" / "src" / "noetl_core" / "playbook"
    source = "\n".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))
    errors = set(re.findall(r'\.error\(\s*"([a-z_]+)"', source)) | set(re.findall(r'_code[^=\n]*= "([a-z_]+)"', source))
    errors |= set(re.findall(r'code="playbook\.([a-z_]+)"', source))
    warnings = set(re.findall(r'\.warn\(\s*"([a-z_]+)"', source))
    rows = [(code(f"playbook.{name}"), "refused") for name in sorted(errors)]
    rows += [(code(f"playbook.{name}"), "warning") for name in sorted(warnings)]
    text = (
        "## Problems of a document\n\nRegistration answers 422 with every problem, each with `code`, `message`, `path` "
        "and `line`, and stores nothing. Warnings come with success."
    )
    return f"{text}\n\n{table(('code', 'document is'), rows)}"


def _outcomes() -> str:
    rows = [(code(kind.value), "yes" if kind.is_retryable else "no") for kind in ErrorKind]
    text = (
        "## Kinds of failed calls\n\nA call that fails has `output.error` with `kind`, `code`, `message` and "
        "`retryable`, which rules and error arcs can look at."
    )
    return f"{text}\n\n{table(('kind', 'retryable'), rows)}"


def _exits() -> str:
    rows = [(str(int(exit_code)), meaning) for exit_code, meaning in MEANINGS.items()]
    return "## Exit codes of the command line\n\n" + table(("code", "means"), rows)


def _summary(thing: type) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
