"""One text form for points in time: RFC 3339, UTC, microseconds, `Z`."""

from datetime import UTC, datetime

from noetl_core.errors import InvalidInput


def format_time(moment: datetime) -> str:
    """Text of an aware datetime; the only form that canonical bytes ever carry."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def parse_time(text: str) -> datetime:
    """The point in time that a text names; naive times are refused, they name none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidInput(f"{text!r} is not an RFC 3339 time") from exc
    if moment.tzinfo is None:
        raise InvalidInput(f"{text!r} has no time zone")
    return moment.astimezone(UTC)
