"""Errors over HTTP: problem details as RFC 9457 writes them."""

import math
import re
from typing import Final

from noetl_core.errors import NoetlError, Problem

from noetl_contracts.error_reports import report_of
from noetl_contracts.status import ERROR_DOMAIN, wire_status

MEDIA_TYPE: Final = "application/problem+json"
_WORD_START: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def problem_json(error: BaseException, *, instance: str | None = None) -> tuple[int, dict[str, object]]:
    """HTTP status and body; of an exception that is not ours nothing is said but that there was one."""
    if not isinstance(error, NoetlError):
        error = NoetlError("internal error")
    report = report_of(error)
    status = wire_status(type(error))
    body: dict[str, object] = {
        **report.facts,  # first, so that no fact can replace a member that the RFC defines
        "type": f"https://{ERROR_DOMAIN}/problems/{report.code}",
        "title": title(type(error)),
        "status": status.http_status,
        "detail": report.message,
        "code": report.code,
        "retryable": report.retryable,
    }
    if instance is not None:
        body["instance"] = instance
    if report.problems:
        body["problems"] = [_problem(problem) for problem in report.problems]
    return status.http_status, body


def retry_after(error: BaseException) -> dict[str, str]:
    """The `Retry-After` header, where waiting helps; whole seconds, as HTTP wants them."""
    if not isinstance(error, NoetlError) or not error.retryable:
        return {}
    seconds = error.retry_seconds or wire_status(type(error)).retry_seconds
    return {"Retry-After": str(max(1, math.ceil(seconds)))} if seconds else {}


def title(error_class: type[NoetlError]) -> str:
    """`LeaseLost` is "Lease lost": the same for every occurrence, as a title must be."""
    if error_class is NoetlError:
        return "Internal error"
    return _WORD_START.sub(" ", error_class.__name__).capitalize()


def _problem(problem: Problem) -> dict[str, object]:
    members = {
        "code": problem.code,
        "message": problem.message,
        "path": problem.path,
        "line": problem.line,
        "column": problem.column,
        "suggestion": problem.suggestion,
    }
    return {name: value for name, value in members.items() if value is not None}
