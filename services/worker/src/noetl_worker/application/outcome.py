"""How a tool call ended: its result, or an error that policies, arcs and people can tell apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import NoetlError

from noetl_worker.application.light_values import light_value


class ErrorKind(StrEnum):
    """What went wrong, coarsely enough to decide by."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    RATE_LIMIT = "rate_limit"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    SCHEMA = "schema"
    PARSE = "parse"
    TRANSFORM = "transform"
    DB_CONNECTION = "db_connection"
    DB_CONSTRAINT = "db_constraint"
    DB_DEADLOCK = "db_deadlock"
    DB_TIMEOUT = "db_timeout"
    STORAGE_QUOTA = "storage_quota"
    STORAGE_ACCESS = "storage_access"
    UNKNOWN = "unknown"

    @property
    def is_retryable(self) -> bool:
        """Whether such a thing may be over when it is tried again; a single error may know better."""
        return self in _RETRYABLE


_RETRYABLE = frozenset(
    {
        ErrorKind.CONNECTION,
        ErrorKind.TIMEOUT,
        ErrorKind.RATE_LIMIT,
        ErrorKind.SERVER_ERROR,
        ErrorKind.DB_CONNECTION,
        ErrorKind.DB_DEADLOCK,
        ErrorKind.DB_TIMEOUT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeError:
    """Why a call failed; `code` is stable, the message is for people."""

    kind: ErrorKind
    code: str
    message: str
    retryable: bool
    status_code: int | None = None
    """Of the response that was refused, if there was one."""

    def to_json(self) -> JsonObject:
        """The error as templates and stored envelopes have it."""
        described: JsonObject = {
            "kind": self.kind.value,
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
        }
        if self.status_code is not None:
            described |= {"status": self.status_code, "status_code": self.status_code}
        return described


@light_value(frozen=True, slots=True, kw_only=True)
class OutcomeMeta:
    """Facts about the call itself."""

    attempt: int = 1
    duration_ms: float = 0.0


_FIRST_ATTEMPT = OutcomeMeta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What a call wrote to its two streams, as far as it was kept."""

    stdout: str
    stderr: str


@light_value(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one call. An error may keep data, such as the response that was refused."""

    data: JsonValue = None
    error: OutcomeError | None = None
    py: Mapping[str, JsonValue] | None = None
    """What a python call has besides: `stdout`, `stderr` and, if it failed, `traceback`."""
    http: Mapping[str, JsonValue] | None = None
    """What an http call has besides: `status` and `headers` of the response."""
    pg: Mapping[str, JsonValue] | None = None
    """What the database said about a failed statement: `sqlstate`, `detail`, `constraint` and so on."""
    printed: Printed | None = None
    """What user code printed: kept for people, apart from the result."""
    meta: OutcomeMeta = _FIRST_ATTEMPT

    @property
    def status(self) -> Literal["ok", "error"]:
        """An outcome without an error is ok, whatever its data say."""
        return "ok" if self.error is None else "error"

    @classmethod
    def failed(
        cls,
        *,
        kind: ErrorKind,
        code: str,
        message: str,
        retryable: bool | None = None,
        status_code: int | None = None,
        data: JsonValue = None,
        py: Mapping[str, JsonValue] | None = None,
        http: Mapping[str, JsonValue] | None = None,
        pg: Mapping[str, JsonValue] | None = None,
        meta: OutcomeMeta | None = None,
    ) -> "Outcome":
        """An error with what there is to keep, as retryable as its kind unless said otherwise."""
        decided = kind.is_retryable if retryable is None else retryable
        error = OutcomeError(kind=kind, code=code, message=message, retryable=decided, status_code=status_code)
        return cls(data=data, error=error, py=py, http=http, pg=pg, meta=meta or _FIRST_ATTEMPT)

    def with_meta(self, meta: OutcomeMeta) -> "Outcome":
        """As `replace`, which looks at every field of the class, with every call."""
        return Outcome(
            data=self.data, error=self.error, py=self.py, http=self.http, pg=self.pg, printed=self.printed, meta=meta
        )

    def with_data(self, data: JsonValue) -> "Outcome":
        """As `with_meta`."""
        return Outcome(
            data=data, error=self.error, py=self.py, http=self.http, pg=self.pg, printed=self.printed, meta=self.meta
        )

    def result(self) -> JsonValue:
        """What becomes the step's result: the data or, after an error, what was kept and the error itself."""
        if self.error is None:
            return self.data
        kept: JsonObject = {} if self.data is None else {"data": self.data}
        if isinstance(self.data, dict):
            kept = self.data
        facts: JsonObject = {} if self.py is None else {"py": dict(self.py)}
        return {**kept, **facts, "status": "error", "error": self.error.to_json()}

    def envelope(self) -> JsonObject:
        """What rules and arcs see as `output`."""
        meta: JsonObject = {"attempt": self.meta.attempt, "duration_ms": self.meta.duration_ms}
        envelope: JsonObject = {"status": self.status, "data": self.data, "meta": meta}
        if self.error is not None:
            envelope["error"] = self.error.to_json()
        for name, facts in (("http", self.http), ("pg", self.pg), ("py", self.py)):
            if facts is not None:
                envelope[name] = dict(facts)
        return envelope


def gone_result(error: NoetlError) -> Outcome:
    """§9.4: what a call reads cannot be reached; it may be back when it is tried again."""
    return Outcome.failed(kind=ErrorKind.STORAGE_ACCESS, code=error.code, message=error.message, retryable=True)
