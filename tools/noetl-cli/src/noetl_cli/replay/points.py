"""Points of a history as people write them."""

from __future__ import annotations

from typing import Any

import click
from noetl_core.errors import InvalidInput
from noetl_core.ids import parse_id
from noetl_core.replay.points import Point
from noetl_core.timestamps import parse_time

_EVENT = "event:"


class PointType(click.ParamType[Point]):
    """head, a position such as 18, event:ID, or a time with its zone."""

    name = "point"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Point:
        if isinstance(value, Point):
            return value
        try:
            return read_point(str(value))
        except InvalidInput as exc:
            self.fail(exc.message, param, ctx)


def read_point(text: str) -> Point:
    """The point that a text names."""
    if text == "head":
        return Point()
    if text.startswith(_EVENT):
        return Point(event_id=parse_id(text.removeprefix(_EVENT), what="an event id"))
    if text.isdecimal():
        if not 0 < len(text) <= 15 or not int(text):
            raise InvalidInput(f"positions count from 1, and {text} is none; an event is written {_EVENT}{text}")
        return Point(stream_version=int(text))
    try:
        return Point(time=parse_time(text))
    except InvalidInput as exc:
        raise InvalidInput(
            f"{text!r} is no point: write head, a position such as 18, event:ID or 2026-01-01T12:00:00Z"
        ) from exc


POINT = PointType()
