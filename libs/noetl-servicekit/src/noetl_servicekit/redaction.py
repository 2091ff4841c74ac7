"""Keeps credentials out of logs: fields that are named like one, and passwords inside URLs and headers."""

import re
from collections.abc import Mapping
from typing import Final

REDACTED: Final = "[redacted]"

_CREDENTIAL_NAME: Final = re.compile(
    r"(?:^|[_.-])(?:passw(?:or)?d|pwd|secret|tokens?|authorization|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credentials?|cookie|dsn)$",
    re.IGNORECASE,
)
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^\s:/@]*):[^\s@/]+(?=@)")
_BEARER: Final = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)


def redact(name: str, value: object) -> object:
    """The value, unless its name says that it is a credential; numbers and flags never are."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if _CREDENTIAL_NAME.search(name):
        return REDACTED
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {key: redact(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact("", inner) for inner in value]
    return value


def redact_text(text: str) -> str:
    """Passwords that hide in text: `postgres://user:…@host`, `Bearer …`."""
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1:{REDACTED}", text)
    return _BEARER.sub(rf"\1 {REDACTED}", text)
