"""Errors across the wire: the one table from classes to statuses, and the way there and back over gRPC."""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import grpc
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no py.typed marker
from noetl_core.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DeadlinePassed,
    ErrorReport,
    InvalidInput,
    NoetlError,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    Overloaded,
    PlaybookInvalid,
    Problem,
    Rejected,
    Unavailable,
)

from noetl_contracts.error_reports import clip, error_from_report, report_of

ERROR_DOMAIN: Final = "noetl.io"
DETAILS_KEY: Final = "grpc-status-details-bin"

# Trailers are headers: a client with default settings refuses more than 8 KB of them and sees no details.
MAX_GRPC_MESSAGE_BYTES: Final = 400
MAX_MESSAGE_BYTES: Final = 1_200
MAX_FACT_BYTES: Final = 400
MAX_DETAILS_BYTES: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WireStatus:
    """What an error class is called by gRPC and by HTTP, and how long to wait before trying again."""

    grpc_code: grpc.StatusCode
    http_status: int
    retry_seconds: float = 0.0


STATUSES: Final[Mapping[type[NoetlError], WireStatus]] = {
    NoetlError: WireStatus(grpc_code=grpc.StatusCode.INTERNAL, http_status=500),
    InvalidInput: WireStatus(grpc_code=grpc.StatusCode.INVALID_ARGUMENT, http_status=400),
    PlaybookInvalid: WireStatus(grpc_code=grpc.StatusCode.INVALID_ARGUMENT, http_status=422),
    NotAuthenticated: WireStatus(grpc_code=grpc.StatusCode.UNAUTHENTICATED, http_status=401),
    NotPermitted: WireStatus(grpc_code=grpc.StatusCode.PERMISSION_DENIED, http_status=403),
    NotFound: WireStatus(grpc_code=grpc.StatusCode.NOT_FOUND, http_status=404),
    AlreadyExists: WireStatus(grpc_code=grpc.StatusCode.ALREADY_EXISTS, http_status=409),
    Conflict: WireStatus(grpc_code=grpc.StatusCode.ABORTED, http_status=409),
    Rejected: WireStatus(grpc_code=grpc.StatusCode.FAILED_PRECONDITION, http_status=409),
    Overloaded: WireStatus(grpc_code=grpc.StatusCode.RESOURCE_EXHAUSTED, http_status=429, retry_seconds=0.5),
    Unavailable: WireStatus(grpc_code=grpc.StatusCode.UNAVAILABLE, http_status=503, retry_seconds=1.0),
    DeadlinePassed: WireStatus(grpc_code=grpc.StatusCode.DEADLINE_EXCEEDED, http_status=504),
    Corrupt: WireStatus(grpc_code=grpc.StatusCode.DATA_LOSS, http_status=500),
}

# Reversed, so that of two classes with one status the parent, which stands first, is found.
_CLASS_OF_STATUS: Final[Mapping[grpc.StatusCode, type[NoetlError]]] = {
    **{status.grpc_code: error_class for error_class, status in reversed(list(STATUSES.items()))},
    # Not cancelled by us (that raises CancelledError here): the server went away in the middle of the call.
    grpc.StatusCode.CANCELLED: Unavailable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcStatus(grpc.Status):
    """What `ServicerContext.abort_with_status` takes."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def wire_status(error_class: type[NoetlError]) -> WireStatus:
    """The nearest class in the table decides."""
    return next(STATUSES[parent] for parent in error_class.__mro__ if parent in STATUSES)


def to_grpc_status(error: NoetlError) -> RpcStatus:
    """A status whose typed details let the other side raise the same error again."""
    status = wire_status(type(error))
    details = _encode(report_of(error), status)
    return RpcStatus(
        code=status.grpc_code,
        details=clip(error.message, max_bytes=MAX_GRPC_MESSAGE_BYTES),
        trailing_metadata=((DETAILS_KEY, details.SerializeToString()),),
    )


def error_from_rpc(error: grpc.RpcError) -> NoetlError:
    """The error that the server raised, or the nearest class if the failure was not the server's own."""
    code, message = error.code(), error.details() or "the call failed without a reason"
    report = _decode(error.trailing_metadata() or ())
    if report is not None:
        return error_from_report(report, fallback=_CLASS_OF_STATUS.get(code, NoetlError))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        return InvalidInput(message)  # the library says so for a message too big, which no retry makes smaller
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return error_from_report(ErrorReport(code="unimplemented", message=message), fallback=NoetlError)
    error_class = _CLASS_OF_STATUS.get(code, NoetlError)
    report = ErrorReport(code=error_class.code, message=message, retryable=error_class.retryable)
    return error_from_report(report, fallback=error_class)


@contextmanager
def raising_noetl_errors() -> Iterator[None]:
    """For clients: a failed call inside raises the error of our tree, with the gRPC error as its cause."""
    try:
        yield
    except grpc.RpcError as exc:
        raise error_from_rpc(exc) from exc


def _encode(report: ErrorReport, status: WireStatus) -> status_pb2.Status:
    facts = {name: clip(value, max_bytes=MAX_FACT_BYTES) for name, value in report.facts.items()}
    info = error_details_pb2.ErrorInfo(reason=report.code, domain=ERROR_DOMAIN, metadata=facts)
    encoded = status_pb2.Status(
        code=status.grpc_code.value[0], message=clip(report.message, max_bytes=MAX_MESSAGE_BYTES)
    )
    listed = _problems_that_fit(report.problems, MAX_DETAILS_BYTES - info.ByteSize() - encoded.ByteSize())
    if len(listed) < len(report.problems):
        info.metadata["problems_omitted"] = str(len(report.problems) - len(listed))
    encoded.details.add().Pack(info)
    if listed:
        encoded.details.add().Pack(_bad_request(listed))
        encoded.details.add().Pack(_positions(listed))
    if report.retryable:
        delay = datetime.timedelta(seconds=report.retry_seconds or status.retry_seconds)
        encoded.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return encoded


def _problems_that_fit(problems: tuple[Problem, ...], max_bytes: int) -> tuple[Problem, ...]:
    spent = 0
    for index, problem in enumerate(problems):
        spent += _bad_request((problem,)).ByteSize() + _positions((problem,)).ByteSize()
        if spent > max_bytes:
            return problems[:index]
    return problems


def _bad_request(problems: Iterable[Problem]) -> error_details_pb2.BadRequest:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(
                field=problem.path, description=problem.message, reason=problem.code
            )
            for problem in problems
        ]
    )


def _positions(problems: Iterable[Problem]) -> struct_pb2.Struct:
    """What a field violation has no place for, in the same order as the violations."""
    positions = struct_pb2.Struct()
    positions.update(
        {
            "positions": [
                {"line": problem.line, "column": problem.column, "suggestion": problem.suggestion}
                for problem in problems
            ]
        }
    )
    return positions


def _decode(trailers: Iterable[object]) -> ErrorReport | None:
    raw = next((value for key, value in _pairs(trailers) if key == DETAILS_KEY), None)
    if not isinstance(raw, bytes):
        return None
    info = error_details_pb2.ErrorInfo()
    request = error_details_pb2.BadRequest()
    positions = struct_pb2.Struct()
    retry = error_details_pb2.RetryInfo()
    retryable = False
    try:
        status = status_pb2.Status.FromString(raw)
        for detail in status.details:
            detail.Unpack(info)
            detail.Unpack(request)
            detail.Unpack(positions)
            retryable = detail.Unpack(retry) or retryable
    except DecodeError:
        return None  # somebody between us and the server wrote it; the status code still says something
    if info.domain != ERROR_DOMAIN:
        return None
    return ErrorReport(
        code=info.reason,
        message=status.message,
        facts=dict(info.metadata),
        problems=tuple(_problems(request, positions)),
        retryable=retryable,
        retry_seconds=retry.retry_delay.ToTimedelta().total_seconds(),
    )


def _pairs(trailers: Iterable[object]) -> Iterator[tuple[object, object]]:
    for trailer in trailers:
        if isinstance(trailer, tuple) and len(trailer) == 2:
            yield trailer[0], trailer[1]


def _problems(request: error_details_pb2.BadRequest, positions: struct_pb2.Struct) -> Iterator[Problem]:
    places = list(positions.fields["positions"].list_value.values) if "positions" in positions.fields else []
    for index, violation in enumerate(request.field_violations):
        place = places[index].struct_value.fields if index < len(places) else {}
        yield Problem(
            code=violation.reason,
            message=violation.description,
            path=violation.field,
            line=_whole_number(place.get("line")),
            column=_whole_number(place.get("column")),
            suggestion=_text(place.get("suggestion")),
        )


def _whole_number(value: struct_pb2.Value | None) -> int | None:
    return int(value.number_value) if value is not None and value.HasField("number_value") else None


def _text(value: struct_pb2.Value | None) -> str | None:
    return value.string_value if value is not None and value.HasField("string_value") else None
