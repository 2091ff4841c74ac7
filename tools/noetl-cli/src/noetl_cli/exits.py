"""Exit codes that scripts can rely on: one table, from every kind of failure and every end of an execution."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from noetl_core.errors import DeadlinePassed, InvalidInput, NoetlError, NotFound, Overloaded, Unavailable
from noetl_core.executions.state import ExecutionStatus


class ExitCode(IntEnum):
    """What `$?` says."""

    OK = 0
    FAILED = 1
    INVALID = 2
    NOT_FOUND = 3
    CANCELLED = 4
    UNAVAILABLE = 5
    INTERRUPTED = 130


MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "done; the execution COMPLETED, or goes on",
    ExitCode.FAILED: "the execution FAILED, or the operation did",
    ExitCode.INVALID: "wrong usage or input, such as a broken playbook",
    ExitCode.NOT_FOUND: "there is no such thing, or it is not yours",
    ExitCode.CANCELLED: "the execution was CANCELLED",
    ExitCode.UNAVAILABLE: "the server is away, or it took too long",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}

_BY_ERROR: Final[Mapping[type[NoetlError], ExitCode]] = {
    NoetlError: ExitCode.FAILED,
    InvalidInput: ExitCode.INVALID,
    NotFound: ExitCode.NOT_FOUND,
    Overloaded: ExitCode.UNAVAILABLE,
    Unavailable: ExitCode.UNAVAILABLE,
    DeadlinePassed: ExitCode.UNAVAILABLE,
}

_BY_STATUS: Final[Mapping[ExecutionStatus, ExitCode]] = {
    ExecutionStatus.RUNNING: ExitCode.OK,
    ExecutionStatus.PAUSED: ExitCode.OK,
    ExecutionStatus.COMPLETED: ExitCode.OK,
    ExecutionStatus.FAILED: ExitCode.FAILED,
    ExecutionStatus.CANCELLED: ExitCode.CANCELLED,
}


def exit_code_of_error(error: NoetlError) -> ExitCode:
    """The nearest class in the table decides."""
    return next(_BY_ERROR[parent] for parent in type(error).__mro__ if parent in _BY_ERROR)


def exit_code_of_status(status: str) -> ExitCode:
    """How an execution stands; a status of a newer server is no failure of ours."""
    known = ExecutionStatus(status) if status in set(ExecutionStatus) else ExecutionStatus.RUNNING
    return _BY_STATUS[known]
