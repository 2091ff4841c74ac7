"""An error as plain data and back again, whatever carries it: the part that gRPC and HTTP have in common."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from noetl_core.errors import (
    ColumnRefused,
    ErrorReport,
    KeyTaken,
    NoetlError,
    NotCanonical,
    NotOwner,
    PlaybookInvalid,
    VersionConflict,
)


def _text_or_none(fact: str) -> str | None:
    return fact or None


# Facts travel as text; these classes also offer some of them as typed attributes.
ATTRIBUTES: Final[Mapping[type[NoetlError], Mapping[str, Callable[[str], object]]]] = {
    NotCanonical: {"path": str},
    ColumnRefused: {"column": str},
    KeyTaken: {"key": str, "event_id": str, "stream_version": int},
    VersionConflict: {"expected": int, "current": int},
    NotOwner: {"shard": int, "address": _text_or_none},
}


def report_of(error: NoetlError) -> ErrorReport:
    """All that a client can learn from the error."""
    return ErrorReport(
        code=error.code,
        message=error.message,
        facts=dict(error.facts),
        problems=error.problems if isinstance(error, PlaybookInvalid) else (),
        retryable=error.retryable,
        retry_seconds=error.retry_seconds,
    )


def error_from_report(report: ErrorReport, *, fallback: type[NoetlError]) -> NoetlError:
    """The class with the report's code; a code from a newer release becomes `fallback` and keeps its code."""
    error_class = next((known for known in error_classes() if known.code == report.code), fallback)
    try:
        attributes = _attributes(error_class, report)
    except (KeyError, ValueError):  # an older server left a fact out: then the wider class is the truth
        error_class, attributes = fallback, {}
    # Constructors write the message themselves; the server's, which may say more, is kept instead.
    error = error_class.__new__(error_class, report.message)
    error.message = report.message
    error.facts = report.facts
    if report.retry_seconds != error.retry_seconds:
        error.retry_seconds = report.retry_seconds
    vars(error).update(attributes)
    if error.code != report.code:
        vars(error)["code"] = report.code
    if error.retryable != report.retryable:
        vars(error)["retryable"] = report.retryable
    return error


def error_classes(root: type[NoetlError] = NoetlError) -> Iterator[type[NoetlError]]:
    """The tree as imported so far, parents before children."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def clip(text: str, *, max_bytes: int) -> str:
    """The text, or as much of it as fits with a mark that it goes on."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return encoded.decode("utf-8")
    return encoded[: max_bytes - 3].decode("utf-8", "ignore") + "…"


def _attributes(error_class: type[NoetlError], report: ErrorReport) -> dict[str, object]:
    if issubclass(error_class, PlaybookInvalid):
        return {"problems": report.problems}
    converters = ATTRIBUTES.get(error_class, {})
    return {name: convert(report.facts[name]) for name, convert in converters.items()}
