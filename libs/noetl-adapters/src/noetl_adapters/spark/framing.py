"""Messages between a worker and its driver process: JSON with its length before it."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO, Final

_LENGTH: Final = struct.Struct(">I")
HEADER_BYTES: Final = _LENGTH.size
MAX_BYTES: Final = 256 * 1024 * 1024


class MessageTooLarge(ValueError):
    """More than one message may have."""


def pack(message: dict[str, Any]) -> bytes:
    """A message as it is sent; raises `MessageTooLarge` and, for what is no JSON, ValueError or TypeError."""
    body = json.dumps(message, allow_nan=False).encode()
    if len(body) > MAX_BYTES:
        raise MessageTooLarge(f"a message of {len(body)} bytes, at most {MAX_BYTES} are possible")
    return _LENGTH.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """How many bytes follow a header."""
    (length,) = _LENGTH.unpack(header)
    return int(length)


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, waiting for it; None when the other side is gone."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    body = stream.read(body_length(header))
    return json.loads(body) if len(body) == body_length(header) else None
