"""One text form for points in time: RFC 3339, UTC, microseconds, `Z`."""

from datetime import UTC, datetime

from noetl_core.errors import InvalidInput


def to_utc(moment: datetime, *, what: str = "") -> datetime:
    """The same point in time in UTC; `what` names it to whoever sent one that has no zone or is beyond UTC."""
    if moment.tzinfo is UTC:
        return moment
    if moment.utcoffset() is None:
        raise InvalidInput(f"{what or repr(moment.isoformat())} has no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as exc:  # within hours of the first or the last year that there is
        raise InvalidInput(f"{what or repr(moment.isoformat())} is a time that UTC cannot express") from exc


def format_time(moment: datetime) -> str:
    """Text of an aware datetime; the only form that canonical bytes ever carry."""
    if moment.tzinfo is not UTC:
        moment = to_utc(moment)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def parse_time(text: str) -> datetime:
    """The point in time that a text names; naive times are refused, they name none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidInput(f"{text!r} is not an RFC 3339 time") from exc
    return to_utc(moment, what=repr(text))
