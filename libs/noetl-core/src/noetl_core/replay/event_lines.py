"""Stored events as lines of JSON, for files and pipes that any language can read; the body stays the text it is."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import Final

from noetl_core.canonical import JsonObject, decode, encode, normalize
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt, NoetlError
from noetl_core.timestamps import format_time, parse_time

_PLACE = frozenset({"aggregate_version", "checksum", "ingest_time", "prev_checksum", "stream_version"})
_FIELDS = _PLACE | {"body"}
_FIELDS_OF_OTHERS = _PLACE | {"body_base64"}
"""Bytes that are no text were written by nobody; evidence has to show them nevertheless."""

_LARGE: Final = re.compile(r"-?[1-9][0-9]{15,18}")
"""Digits of an integer of 63 bits that a double may not hold."""


def event_line(event: StoredEvent) -> bytes:
    """One event with its place, as canonical JSON without a line feed; `body` is a text: its bytes are what counts.

    Versions that JSON has no number for, which nobody could have written either, are told by their digits as text.
    """
    try:
        body: JsonObject = {"body": event.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": b64encode(event.body).decode()}
    return encode(
        {
            **body,
            "aggregate_version": normalize(event.aggregate_version),
            "checksum": event.checksum,
            "ingest_time": format_time(event.ingest_time),
            "prev_checksum": event.prev_checksum,
            "stream_version": normalize(event.stream_version),
        }
    )


def read_event_line(line: bytes) -> StoredEvent:
    """The event of a line; raises `Corrupt` for anything else."""
    try:
        fields = decode(line)
        if not isinstance(fields, dict) or fields.keys() not in (_FIELDS, _FIELDS_OF_OTHERS):
            raise Corrupt(f"the line of an event has exactly the fields {', '.join(sorted(_FIELDS))}")
        return StoredEvent(
            body=_body(fields),
            stream_version=_number(fields["stream_version"]),
            aggregate_version=_number(fields["aggregate_version"]),
            ingest_time=parse_time(_text(fields["ingest_time"])),
            prev_checksum=_text(fields["prev_checksum"]),
            checksum=_text(fields["checksum"]),
        )
    except Corrupt:
        raise
    except NoetlError as exc:
        raise Corrupt(f"the line of an event cannot be read: {exc.message}") from exc


def _body(fields: JsonObject) -> bytes:
    if "body" in fields:
        return _text(fields["body"]).encode()
    try:
        return b64decode(_text(fields["body_base64"]), validate=True)
    except ValueError as exc:
        raise Corrupt("the line of an event has a body that is not base64") from exc


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Corrupt(f"the line of an event has {type(value).__name__} where text belongs")
    return value


def _number(value: object) -> int:
    if type(value) is int:
        return value
    if type(value) is str and _LARGE.fullmatch(value) and type(normalize(int(value))) is str:
        return int(value)
    raise Corrupt(f"the line of an event has {type(value).__name__} where a number belongs")
