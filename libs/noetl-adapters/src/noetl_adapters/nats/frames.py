"""The protocol of NATS as bytes: what is sent, and the headers of what has come."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"

_VERSION_LINE: Final = "NATS/1.0"
_FIELD: Final = re.compile(r"^([^:\s]+):[ \t]*(.*?)[ \t]*\r$", re.MULTILINE)
_LINE_ENDS: Final = str.maketrans({"\r": " ", "\n": " "})


def connect(options: Mapping[str, Any]) -> bytes:
    """Who we are, and what we understand."""
    return b"CONNECT " + json.dumps(options).encode() + b"\r\n"


def subscribe(subject: str, number: int) -> bytes:
    """Messages under a subject are wanted, under a number of ours."""
    return f"SUB {subject} {number}\r\n".encode()


def unsubscribe(number: int) -> bytes:
    """They are wanted no more."""
    return f"UNSUB {number}\r\n".encode()


def publish(subject: str, body: bytes, reply: str = "") -> bytes:
    """One message without headers; the subject has no spaces, which its maker knows."""
    return f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n"


def publish_with_headers(subject: str, body: bytes, reply: str, headers: Mapping[str, str]) -> bytes:
    """One message with headers, whose names are known to be names."""
    block = f"{_VERSION_LINE}\r\n{''.join([f'{name}: {_one_line(text)}{_CRLF}' for name, text in headers.items()])}\r\n"
    written = block.encode()
    size = len(written)
    return b"".join(
        (f"HPUB {subject} {reply} {size} {size + len(body)}\r\n".encode(), written, body, b"\r\n"),
    )


_CRLF: Final = "\r\n"


def _one_line(text: str) -> str:
    """A value that had line ends would be read as further headers."""
    return text.translate(_LINE_ENDS) if "\n" in text or "\r" in text else text


def read_headers(block: bytes) -> dict[str, str]:
    """By name, the last of a name counts; lines that are no header are passed over."""
    return dict(_FIELD.findall(block.decode("utf-8", "replace"))) if block else {}


def read_status(block: bytes) -> tuple[str, str]:
    """What a server says by itself, as in `NATS/1.0 404 No Messages`: code and description, both may be empty."""
    line = block.partition(b"\r\n")[0].decode("utf-8", "replace")
    code, _, description = line.removeprefix(_VERSION_LINE).strip().partition(" ")
    return code, description
