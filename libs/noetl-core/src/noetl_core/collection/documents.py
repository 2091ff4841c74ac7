"""Stored documents that refer to payloads: whoever tells of one says so, or nobody would know what it reaches.

The result of a spark step has its rows in payloads that only the result names; so has a pipeline that is parked with
such a result. Most documents name nothing, and a collector need not read them. An address that stands for itself says
nothing of what it leads to, so what is there has to be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from noetl_core.canonical import JsonValue, decode
from noetl_core.payloads import UNKNOWN_MEDIA_TYPE

JSON: Final = "application/json"
HOLDING_JSON: Final = "application/json; holds=digests"
"""The media type of JSON in which digests stand, of payloads or of anything else."""

HOLDS: Final = "holds"
"""Key of the reference of a result that is no JSON and in which digests stand."""

MAX_HEADER_BYTES: Final = 2 * 1024 * 1024
"""Of a table: its columns, and what the result has besides rows."""

LONGEST_ADDRESS: Final = len("payloads/sha256/") + 2 * 3 + 64
"""In bytes, as far as it is looked for."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ADDRESS: Final = re.compile(rb"payloads\\{0,3}/sha256\\{0,3}/([0-9a-f]{64})")
"""The end of a payload's address; JSON within JSON may have its slashes escaped."""
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


def addresses_in(data: bytes) -> Iterator[str]:
    """Digests of all payloads whose address stands in any bytes."""
    return (found[1].decode("ascii") for found in _ADDRESS.finditer(data))


def documents_in(body: bytes) -> Iterator[str]:
    """Digests of what may refer to payloads itself, among all that an event refers to.

    A reference that says what it leads to is believed; that saves reading every result in every collection.
    """
    if HOLDS.encode() in body or b"payloads" in body:
        yield from _documents(decode(body))


def _documents(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        sha256 = value.get("sha256")
        is_reference = isinstance(sha256, str) and _DIGEST.fullmatch(sha256) is not None
        if is_reference and _holds(value):
            yield str(sha256)
        told = value["uri"] if is_reference and _is_told(value) else None
        for key, inner in value.items():
            yield from _documents(key)
            if told is None or inner != told:
                yield from _documents(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _documents(inner)
    elif isinstance(value, str) and "payloads" in value:
        yield from addresses_in(value.encode(errors="replace"))


def _is_told(reference: dict[str, Any]) -> bool:
    """Whether its writer knew the bytes."""
    address, media_type = reference.get("uri"), reference.get("media_type", UNKNOWN_MEDIA_TYPE)
    is_whole = isinstance(address, str) and address.endswith(f"/{reference['sha256']}")
    return is_whole and media_type != UNKNOWN_MEDIA_TYPE and type(reference.get("bytes")) is int


def _holds(reference: dict[str, Any]) -> bool:
    return reference.get(HOLDS) is True or reference.get("media_type") == HOLDING_JSON
