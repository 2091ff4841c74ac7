"""Where a listing of heads goes on, as an opaque token."""

from __future__ import annotations

from datetime import datetime

from noetl_core.errors import InvalidInput
from noetl_core.ids import parse_id
from noetl_core.timestamps import format_time, parse_time


def head_token(updated_at: datetime, execution_id: int) -> str:
    """The place after this head."""
    return f"{format_time(updated_at)}/{execution_id}"


def head_place(token: str) -> tuple[datetime, int] | None:
    """The place that a token names; an empty token is the start."""
    if not token:
        return None
    moment, separator, execution_id = token.partition("/")
    if not separator:
        raise InvalidInput(f"{token!r} is not a page token")
    return parse_time(moment), parse_id(execution_id)
