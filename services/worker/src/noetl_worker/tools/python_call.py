"""The ways in which a call of user Python can end, as its worker sees them."""

from collections.abc import Mapping
from dataclasses import dataclass

from noetl_core.canonical import JsonValue, decode
from noetl_core.errors import InvalidInput

from noetl_worker.application.outcome import Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the child said: data, or the error in which the user's code ended; and how the child is."""

    data: JsonValue
    error: Mapping[str, JsonValue] | None
    retire: str | None
    rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The child answered in time."""

    answer: Answer
    printed: Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The call took too long, so the child was killed."""

    printed: Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """The child ended during the call, or broke its protocol and was killed."""

    reason: str
    printed: Printed


CallEnd = Answered | TimedOut | Died


def understand(frame: bytes, *, request_id: int) -> Answer:
    """The answer in a frame; refused unless it has exactly that form, since user code could forge one."""
    end = frame.find(b"\n")
    if end < 0:
        raise InvalidInput("an answer without a body")
    match decode(frame[:end]):
        case {
            "id": int(answered_id),
            "outcome": outcome,
            "retire": str() | None as retire,
            "rss_bytes": int(rss),
        }:
            pass
        case _:
            raise InvalidInput("not the head of an answer")
    if answered_id != request_id:
        raise InvalidInput(f"the answer to {answered_id}, not to {request_id}")
    match outcome, decode(memoryview(frame)[end + 1 :]):  # in place: it may be most of what memory there is
        case "data", data:
            return Answer(data=data, error=None, retire=retire, rss_bytes=rss)
        case "error", dict(error):
            return Answer(data=None, error=error, retire=retire, rss_bytes=rss)
        case _:
            raise InvalidInput("neither data nor an error")
