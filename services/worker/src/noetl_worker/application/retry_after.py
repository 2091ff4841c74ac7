"""How long a server asks to be left alone: `Retry-After` is a number of seconds, or a date (RFC 9110)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from noetl_worker.application.outcome import Outcome

TOO_MANY_REQUESTS = 429


def asked_pause(outcome: Outcome, *, now: datetime) -> float | None:
    """The seconds that a response 429 asks for; None for any other, and where nothing can be made of what it says.

    A date is compared with the server's own clock, if it tells the time of its response.
    """
    http = outcome.http or {}
    headers = http.get("headers")
    if http.get("status") != TOO_MANY_REQUESTS or not isinstance(headers, Mapping):
        return None
    told = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    after = told.get("retry-after", "")
    if after.isascii() and after.isdigit():
        return float(after)
    until = _date(after)
    if until is None:
        return None
    return max((until - (_date(told.get("date", "")) or now)).total_seconds(), 0.0)


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
