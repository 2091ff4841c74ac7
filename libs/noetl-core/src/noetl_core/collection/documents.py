"""Stored documents that refer to payloads: whoever tells of one says so, or nobody would know what it reaches.

The result of a spark step has its rows in payloads that only the result names; so has a pipeline that is parked with
such a result. Most documents name nothing, and a collector need not read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from noetl_core.canonical import JsonValue, decode

JSON: Final = "application/json"
HOLDING_JSON: Final = "application/json; holds=digests"
"""The media type of JSON in which digests stand, of payloads or of anything else."""

HOLDS: Final = "holds"
"""Key of the reference of a result that is no JSON and in which digests stand."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ONLY_HEX: Final = bytes(ord("a") if chr(code) in "0123456789abcdef" else ord(" ") for code in range(256))
_RUN: Final = b"a" * 64
_PIECE_BYTES: Final = 4 * 1024 * 1024


def holds_digests(data: bytes) -> bool:
    """Whether anything in it could be the digest of a payload.

    Looked for in a copy in which all digits are one character: results may be large, and this is much faster than a
    pattern.
    """
    pieces = range(0, len(data), _PIECE_BYTES)
    return any(_RUN in data[at : at + _PIECE_BYTES + len(_RUN) - 1].translate(_ONLY_HEX) for at in pieces)


def json_media_type(data: bytes) -> str:
    """What a reference to this JSON says of it."""
    return HOLDING_JSON if holds_digests(data) else JSON


def documents_in(body: bytes) -> Iterator[str]:
    """Digests of the documents to which an event refers, and which refer to payloads themselves."""
    if HOLDS.encode() in body:
        yield from _documents(decode(body))


def _documents(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        sha256 = value.get("sha256")
        if isinstance(sha256, str) and _DIGEST.fullmatch(sha256) and _holds(value):
            yield sha256
        for inner in value.values():
            yield from _documents(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _documents(inner)


def _holds(reference: dict[str, Any]) -> bool:
    return reference.get(HOLDS) is True or reference.get("media_type") == HOLDING_JSON
