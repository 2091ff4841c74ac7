"""Every failure that callers can tell apart, as one tree; the parent class decides the gRPC and HTTP status.

NoetlError
├── InvalidInput            the request is wrong as it stands           INVALID_ARGUMENT    400/422
│   ├── PlaybookInvalid
│   ├── InvalidPayload
│   ├── NotCanonical
│   └── LocatorInvalid
├── NotAuthenticated        no token, or one nobody issued              UNAUTHENTICATED     401
├── NotPermitted            the caller's role does not allow it         PERMISSION_DENIED   403
├── NotFound                not there, or not visible to this caller    NOT_FOUND           404
├── AlreadyExists           the name or key is taken by something else  ALREADY_EXISTS      409
│   └── KeyTaken
├── Conflict                somebody else was first; reload and retry   ABORTED             409
│   ├── Overtaken
│   └── VersionConflict
├── Rejected                the state of the thing forbids it           FAILED_PRECONDITION 409
│   ├── AlreadyTerminal
│   ├── NotPaused
│   ├── ExecutionIsPaused
│   ├── NotTerminal
│   ├── NothingToRedrive
│   ├── NoFailedRows
│   ├── Fenced
│   ├── LeaseLost
│   ├── FrameAlreadyTerminal
│   ├── FrameHasRows
│   ├── TooEarly
│   ├── TooDeep
│   ├── TooLargeToReplay
│   └── NotOwner
├── Overloaded              a bounded queue is full; slow down          RESOURCE_EXHAUSTED  429
├── Unavailable             something we need is away; retry later      UNAVAILABLE         503
├── DeadlinePassed          it took too long                            DEADLINE_EXCEEDED   504
└── Corrupt                 stored bytes are not what was written       DATA_LOSS           500
    └── LakeDiverged
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar


class NoetlError(Exception):
    """Anything that NoETL itself refuses or cannot do; `code` is stable, the message is for people."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    retry_seconds: float = 0.0
    """When to come again, if whoever refuses knows; else the table of statuses says something for all of a kind."""

    def __init__(self, message: str, **facts: str) -> None:
        super().__init__(message)
        self.message = message
        self.facts: Mapping[str, str] = facts
        """What a program needs to know besides the code: ids, versions, addresses; all as text."""


class InvalidInput(NoetlError):
    """The request is wrong as it stands; sending it again will not help."""

    code = "request.invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a document, and where."""

    code: str
    message: str
    path: str = ""
    line: int | None = None
    column: int | None = None
    suggestion: str | None = None


class PlaybookInvalid(InvalidInput):
    """The playbook cannot be registered; every problem is listed."""

    code = "playbook.invalid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        where = f" (line {first.line})" if first.line is not None else ""
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(f"{first.message}{where}{more}")
        self.problems = tuple(problems)


class InvalidPayload(InvalidInput):
    """The variables given to an execution are too large, or not JSON."""

    code = "execution.invalid_payload"


class NotCanonical(InvalidInput):
    """A value that canonical JSON cannot carry, and where it stands."""

    code = "value.not_canonical"

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{message} at {path or 'the top'}", path=path)
        self.path = path


class ColumnRefused(InvalidInput):
    """A column whose values a table could not give back as they were."""

    code = "table.column_refused"

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column!r} cannot be stored as a table: {reason}", column=column)
        self.column = column


class LocatorInvalid(InvalidInput):
    """A noetl:// locator that does not follow its grammar."""

    code = "locator.invalid"


class NotAuthenticated(NoetlError):
    """The caller presented no token, or one that maps to nobody."""

    code = "auth.unauthenticated"


class NotPermitted(NoetlError):
    """The caller is known, and may not do this."""

    code = "auth.forbidden"


class NotFound(NoetlError):
    """There is no such thing for this caller; another tenant's things look the same."""

    code = "not_found"

    def __init__(self, what: str, name: object, *, code: str | None = None) -> None:
        super().__init__(f"{what} {str(name)!r} does not exist", what=what, name=str(name))
        if code is not None:
            self.code = code  # type: ignore[misc]  # an instance may be more precise than its class


class AlreadyExists(NoetlError):
    """The name or key belongs to something else."""

    code = "already_exists"


class KeyTaken(AlreadyExists):
    """The idempotency key was used before, for other content; the winner is named."""

    code = "event.key_taken"

    def __init__(self, *, key: str, event_id: str, stream_version: int, execution_id: str = "") -> None:
        facts = {"execution_id": execution_id} if execution_id else {}
        super().__init__(
            f"idempotency key {key!r} belongs to event {event_id} with other content",
            key=key,
            event_id=event_id,
            stream_version=str(stream_version),
            **facts,
        )
        self.key = key
        self.event_id = event_id
        self.stream_version = stream_version


class Conflict(NoetlError):
    """Somebody else was first: read what is new, and decide again."""

    code = "conflict"
    retryable = True


class Overtaken(Conflict):
    """What was told ahead of its commit was not committed, and never will be as it was told."""

    code = "event.overtaken"


class VersionConflict(Conflict):
    """The stream or aggregate is not at the version that the caller expected."""

    code = "event.version_conflict"

    def __init__(self, *, subject: str, expected: int, current: int) -> None:
        super().__init__(
            f"{subject} is at version {current}, expected {expected}",
            subject=subject,
            expected=str(expected),
            current=str(current),
        )
        self.expected = expected
        self.current = current


class Rejected(NoetlError):
    """The state of the thing forbids it."""

    code = "rejected"


class AlreadyTerminal(Rejected):
    """The execution has ended; nothing may follow its terminal event."""

    code = "execution.already_terminal"

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"execution {execution_id} has already ended", execution_id=execution_id)


class NotPaused(Rejected):
    """The execution was never paused, so that there is nothing to resume."""

    code = "execution.not_paused"

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"execution {execution_id} is not paused", execution_id=execution_id)


class ExecutionIsPaused(Rejected):
    """Nothing is given out or given up before the execution is resumed."""

    code = "execution.paused"

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"execution {execution_id} is paused", execution_id=execution_id)


class NotTerminal(Rejected):
    """The execution still runs: what it leads to is not known yet."""

    code = "execution.not_terminal"

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            f"execution {execution_id} has not ended: cancel or finalize it first", execution_id=execution_id
        )


class NothingToRedrive(Rejected):
    """The execution has no failed step to begin with, nor a single one that ran when it ended; name one."""

    code = "execution.step_required"

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            f"no step of execution {execution_id} has failed: name the step to begin with", execution_id=execution_id
        )


class NoFailedRows(Rejected):
    """No row of the loop has failed, so that there is nothing to run again."""

    code = "frames.none_failed"

    def __init__(self, *, execution_id: str, step: str) -> None:
        super().__init__(f"no row of step {step!r} of execution {execution_id} has failed", execution_id=execution_id)


class Fenced(Rejected):
    """The writer's shard lease has passed to somebody else; it must stop writing."""

    code = "shard.fenced"

    def __init__(self, *, role: str, shard: int, epoch: int, current: int) -> None:
        super().__init__(
            f"{role} epoch {epoch} of shard {shard} is over, it is at {current}",
            role=role,
            shard=str(shard),
            epoch=str(epoch),
            current=str(current),
        )


class LeaseLost(Rejected):
    """The worker no longer holds the command or the frame, so its result does not count."""

    code = "command.lease_lost"

    def __init__(self, *, command_id: str, worker: str, holder: str | None) -> None:
        super().__init__(
            f"worker {worker!r} does not hold command {command_id} (holder: {holder!r})",
            command_id=command_id,
            holder=holder or "",
        )


class FrameAlreadyTerminal(Rejected):
    """The attempt at the frame has ended before, by another fact than this one."""

    code = "frame.already_terminal"

    def __init__(self, *, frame_id: str, attempt: int, winner: str, **facts: str) -> None:
        named = f"attempt {attempt} at frame {frame_id}" if attempt else f"frame {frame_id}"
        super().__init__(
            f"{named} has ended (winner: {winner})",
            frame_id=frame_id,
            attempt=str(attempt),
            winner=winner,
            **facts,
        )


class FrameHasRows(Rejected):
    """The frame has claimed other rows before; whoever tries it next gets those."""

    code = "frame.has_rows"

    def __init__(self, frame_id: str) -> None:
        super().__init__(f"frame {frame_id} has other rows, which were told before", frame_id=frame_id)


class TooEarly(Rejected):
    """The thing may happen only after a time that Postgres' clock has not reached."""

    code = "event.too_early"


class TooDeep(Rejected):
    """Too many executions stand above the one that is to be started."""

    code = "execution.too_deep"


class TooLargeToReplay(Rejected):
    """The state at this point holds more than a process may hold to answer one question."""

    code = "replay.too_large"


class NotOwner(Rejected):
    """This replica does not own the shard; `address` names who does, if anybody."""

    code = "shard.not_owner"

    def __init__(self, *, shard: int, address: str | None) -> None:
        super().__init__(f"shard {shard} is not owned here", shard=str(shard), address=address or "")
        self.shard = shard
        self.address = address


class Overloaded(NoetlError):
    """A bounded queue is full: slow down and try again."""

    code = "overloaded"
    retryable = True

    def __init__(self, message: str, *, retry_seconds: float = 0.0, **facts: str) -> None:
        super().__init__(message, **facts)
        self.retry_seconds = retry_seconds


class Unavailable(NoetlError):
    """Something that is needed is away; nothing was acknowledged that was not committed."""

    code = "unavailable"
    retryable = True


class DeadlinePassed(NoetlError):
    """The work took longer than the caller allowed."""

    code = "deadline_passed"
    retryable = True


class Corrupt(NoetlError):
    """Stored bytes are not the bytes that were written."""

    code = "corrupt"


class LakeDiverged(Corrupt):
    """A lake has events that the log does not have, or has others of: they are not of one history any more."""

    code = "lake.diverged"

    def __init__(self, execution_id: int, told: str) -> None:
        super().__init__(
            f"execution {execution_id}: {told}. The log is not the one that this lake was exported from, as after a "
            "restore from a backup: begin another lake",
            execution_id=str(execution_id),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """An error as it travels: what a client can rebuild from status details or problem+json."""

    code: str
    message: str
    facts: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    retryable: bool = False
    retry_seconds: float = 0.0
