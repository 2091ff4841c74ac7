from collections.abc import Callable, Mapping

import grpc
import grpc.aio
import pytest
from noetl_contracts.error_reports import error_classes, error_from_report
from noetl_contracts.status import (
    DETAILS_KEY,
    STATUSES,
    RpcStatus,
    error_from_rpc,
    raising_noetl_errors,
    to_grpc_status,
    wire_status,
)
from noetl_core import errors
from noetl_core.errors import (
    AlreadyTerminal,
    ColumnRefused,
    ErrorReport,
    ExecutionIsPaused,
    Fenced,
    FrameAlreadyTerminal,
    FrameHasRows,
    InvalidInput,
    KeyTaken,
    LakeDiverged,
    LeaseLost,
    NoetlError,
    NoFailedRows,
    NotCanonical,
    NotFound,
    NothingToRedrive,
    NotOwner,
    NotPaused,
    NotTerminal,
    Overloaded,
    PlaybookInvalid,
    Problem,
    Rejected,
    Unavailable,
    VersionConflict,
)

PROBLEMS = (
    Problem(code="yaml.duplicate", message="doppelter Schlüssel", path="/steps/0", line=3, column=7),
    Problem(code="step.unknown", message="no step 'lod'", path="/next", suggestion="did you mean 'load'?"),
    Problem(code="empty", message=""),
)

# Classes whose constructor takes more than a message and facts; every other class is made with those.
EXAMPLES: Mapping[type[NoetlError], Callable[[], NoetlError]] = {
    PlaybookInvalid: lambda: PlaybookInvalid(PROBLEMS),
    NotCanonical: lambda: NotCanonical("NaN cannot be carried", path="/rows/3"),
    NotFound: lambda: NotFound("execution", 42),
    KeyTaken: lambda: KeyTaken(key="decision/7/0", event_id="91", stream_version=12),
    VersionConflict: lambda: VersionConflict(subject="stream 5", expected=3, current=4),
    AlreadyTerminal: lambda: AlreadyTerminal("5"),
    Fenced: lambda: Fenced(role="planner", shard=3, epoch=1, current=2),
    LeaseLost: lambda: LeaseLost(command_id="c1", worker="ada", holder=None),
    FrameAlreadyTerminal: lambda: FrameAlreadyTerminal(frame_id="f", attempt=1, winner="frame.committed at version 7"),
    FrameHasRows: lambda: FrameHasRows("f"),
    ExecutionIsPaused: lambda: ExecutionIsPaused("5"),
    NotOwner: lambda: NotOwner(shard=9, address=None),
    NotPaused: lambda: NotPaused("5"),
    NotTerminal: lambda: NotTerminal("5"),
    NothingToRedrive: lambda: NothingToRedrive("5"),
    NoFailedRows: lambda: NoFailedRows(execution_id="5", step="s"),
    LakeDiverged: lambda: LakeDiverged(5, "the lake has events up to 9, and the log ends at 7"),
    ColumnRefused: lambda: ColumnRefused("größe", "a set is no column"),
}
TREE = [error_class for error_class in error_classes() if error_class.__module__ == errors.__name__]


def example(error_class: type[NoetlError]) -> NoetlError:
    make = EXAMPLES.get(error_class)
    return make() if make is not None else error_class("it went wrong: größer", name="ключ", count="3")


def received(status: RpcStatus) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        status.code, trailing_metadata=grpc.aio.Metadata(*status.trailing_metadata), details=status.details
    )


def round_trip(error: NoetlError) -> NoetlError:
    return error_from_rpc(received(to_grpc_status(error)))


@pytest.mark.parametrize("error_class", TREE)
def test_every_error_of_the_tree_arrives_as_it_left(error_class: type[NoetlError]) -> None:
    sent = example(error_class)

    arrived = round_trip(sent)

    assert type(arrived) is error_class
    told = wire_status(error_class).retry_seconds
    assert vars(arrived) == vars(sent) | ({"retry_seconds": told} if told else {})
    assert (arrived.code, arrived.retryable, str(arrived)) == (sent.code, sent.retryable, str(sent))


@pytest.mark.parametrize("error_class", TREE)
def test_every_error_class_has_the_status_that_the_tree_in_the_docstring_draws(
    error_class: type[NoetlError],
) -> None:
    parent = next(known for known in error_class.__mro__ if NoetlError in known.__bases__ or known is NoetlError)
    drawn = next((line for line in (errors.__doc__ or "").splitlines() if f" {parent.__name__} " in line), "")
    status = wire_status(error_class)

    if parent is NoetlError:
        assert (status.grpc_code, status.http_status) == (grpc.StatusCode.INTERNAL, 500)
    else:
        *_, code, http_status = drawn.split()
        assert status.grpc_code.name == code
        assert str(status.http_status) in http_status.split("/")


def test_every_direct_child_of_the_root_stands_in_the_table() -> None:
    children = [child for child in NoetlError.__subclasses__() if child.__module__ == errors.__name__]

    assert set(children) <= set(STATUSES)


def test_an_instance_may_have_a_more_precise_code_than_its_class() -> None:
    arrived = round_trip(NotFound("playbook", "etl/load", code="playbook.not_found"))

    assert type(arrived) is NotFound
    assert arrived.code == "playbook.not_found"


def test_a_code_from_a_newer_release_becomes_its_parent_and_keeps_code_and_retryability() -> None:
    report = ErrorReport(code="shard.migrating", message="come back", facts={"shard": "3"}, retryable=True)

    error = error_from_report(report, fallback=Rejected)

    assert type(error) is Rejected
    assert (error.code, error.retryable, error.facts) == ("shard.migrating", True, {"shard": "3"})


def test_an_error_whose_facts_are_missing_becomes_the_wider_class() -> None:
    error = error_from_report(ErrorReport(code=KeyTaken.code, message="taken"), fallback=InvalidInput)

    assert type(error) is InvalidInput
    assert error.code == KeyTaken.code


def test_hundreds_of_problems_and_long_texts_stay_below_what_every_client_accepts() -> None:
    problem = Problem(code="step.unknown", message="x" * 200, path="/workflow/steps", line=1)
    error = PlaybookInvalid([problem] * 500)

    status = to_grpc_status(error)
    arrived = error_from_rpc(received(status))

    assert len(dict(status.trailing_metadata)[DETAILS_KEY]) < 6_000
    assert isinstance(arrived, PlaybookInvalid)
    assert len(arrived.problems) + int(arrived.facts["problems_omitted"]) == 500
    assert arrived.problems[0] == problem
    long = round_trip(Unavailable("ж" * 100_000, reason="ж" * 100_000))
    assert long.message.endswith("…")
    assert len(long.facts["reason"]) < 500


@pytest.mark.parametrize(
    ("code", "error_class", "error_code", "retryable"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unavailable, "unavailable", True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlinePassed, "deadline_passed", True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Overloaded, "overloaded", True),
        (grpc.StatusCode.CANCELLED, Unavailable, "unavailable", True),
        (grpc.StatusCode.UNKNOWN, NoetlError, "internal", False),
        (grpc.StatusCode.UNIMPLEMENTED, NoetlError, "unimplemented", False),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidInput, "request.invalid", False),
    ],
)
def test_a_failure_without_our_details_becomes_the_nearest_class(
    code: grpc.StatusCode, error_class: type[NoetlError], error_code: str, retryable: bool
) -> None:
    error = error_from_rpc(grpc.aio.AioRpcError(code, details="refused"))

    assert type(error) is error_class
    assert (error.code, error.retryable, error.message) == (error_code, retryable, "refused")


def test_a_message_too_large_for_the_channel_is_not_worth_a_retry() -> None:
    error = error_from_rpc(
        grpc.aio.AioRpcError(
            grpc.StatusCode.RESOURCE_EXHAUSTED, details="CLIENT: Received message larger than max (17 vs. 16)"
        )
    )

    assert type(error) is InvalidInput


@pytest.mark.parametrize("details", [b"\xff\xff\xff", b"", "text"])
def test_foreign_details_are_ignored(details: bytes | str) -> None:
    error = error_from_rpc(
        grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, trailing_metadata=grpc.aio.Metadata((DETAILS_KEY, details)))
    )

    assert type(error) is Unavailable


def test_clients_raise_the_error_with_the_call_as_its_cause() -> None:
    call = received(to_grpc_status(NotOwner(shard=9, address="planner-1:7000")))

    with pytest.raises(NotOwner) as refusal, raising_noetl_errors():
        raise call

    assert refusal.value.address == "planner-1:7000"
    assert refusal.value.__cause__ is call
