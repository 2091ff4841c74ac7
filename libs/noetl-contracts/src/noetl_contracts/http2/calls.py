"""What gRPC says with HTTP/2: metadata, deadlines, statuses, and messages with their lengths before them."""

from __future__ import annotations

import base64
import binascii
import math
import re
import zlib
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

import grpc

from noetl_contracts.http2 import frames
from noetl_contracts.http2.header_blocks import Header, Headers

CONTENT_TYPE: Final = ("content-type", "application/grpc")
METADATA_OVERHEAD_BYTES: Final = 32
MESSAGE_HEAD_BYTES: Final = 5
MAX_TIMEOUT_SECONDS: Final = 99_999_999

Metadata = tuple[tuple[str, str | bytes], ...]

STATUS_OF_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}
_STATUS_OF_TEXT: Final = {str(number): code for number, code in STATUS_OF_NUMBER.items()}
_STATUS_OF_HTTP: Final = {
    "400": grpc.StatusCode.INTERNAL,
    "401": grpc.StatusCode.UNAUTHENTICATED,
    "403": grpc.StatusCode.PERMISSION_DENIED,
    "404": grpc.StatusCode.UNIMPLEMENTED,
    "429": grpc.StatusCode.UNAVAILABLE,
    "502": grpc.StatusCode.UNAVAILABLE,
    "503": grpc.StatusCode.UNAVAILABLE,
    "504": grpc.StatusCode.UNAVAILABLE,
}
_STATUS_OF_RESET: Final = {
    frames.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    frames.CANCEL: grpc.StatusCode.CANCELLED,
    frames.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    frames.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_KEY: Final = re.compile(r"[0-9a-z_.\-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_UNPRINTABLE: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")
_RESERVED: Final = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})
_ENDINGS: Final = frozenset({"grpc-status", "grpc-message"})


class MessageRefused(Exception):
    """A message that is not taken; the call ends with this status."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def timeout_text(seconds: float) -> str:
    """A deadline as it travels: never shorter than it is, whole seconds where it is whole seconds."""
    if seconds >= MAX_TIMEOUT_SECONDS / 1000 or (seconds == int(seconds) and seconds > 0):
        return f"{min(math.ceil(seconds), MAX_TIMEOUT_SECONDS)}S"
    return f"{max(math.ceil(seconds * 1000), 0)}m"


def timeout_seconds(text: str) -> float | None:
    """None if it is malformed."""
    found = _TIMEOUT.fullmatch(text)
    return int(found[1]) * _UNITS[found[2]] if found else None


def metadata_headers(metadata: Iterable[tuple[str, str | bytes]]) -> Headers:
    """Metadata as headers; raises `ValueError` for what no header can carry."""
    return tuple(_header(key, value) for key, value in metadata)


def _header(key: str, value: str | bytes) -> Header:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no key of metadata")
    if key.endswith("-bin"):
        raw = value if isinstance(value, bytes) else value.encode()
        return key, base64.b64encode(raw).rstrip(b"=").decode("ascii")
    text = value if isinstance(value, str) else value.decode("ascii", "replace")
    if not _VALUE.fullmatch(text):
        raise ValueError(f"the value of {key!r} has characters that metadata cannot carry")
    return key, text


def metadata_of(headers: Headers) -> Metadata:
    """What the other side's application said; binary values as bytes."""
    return tuple(
        (name, _binary(value)) if name.endswith("-bin") else (name, value)
        for name, value in headers
        if not name.startswith(":") and name not in _RESERVED and name not in _ENDINGS
    )


def headers_size(headers: Headers) -> int:
    return sum([len(name) + len(value) + METADATA_OVERHEAD_BYTES for name, value in headers])


def _binary(value: str) -> bytes:
    # Several values under one key may come joined; whoever wants one of them takes the first.
    text = value.partition(",")[0]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def message_text(text: str) -> str:
    """A status message, with bytes that headers cannot carry escaped."""
    raw = text.encode("utf-8", "replace")
    return _UNPRINTABLE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode("ascii")


def ending(headers: Headers) -> tuple[grpc.StatusCode, str] | None:
    """Status and message of trailers; None if there are none in these headers."""
    status = next((value for name, value in headers if name == "grpc-status"), None)
    if status is None:
        return None
    message = next((value for name, value in headers if name == "grpc-message"), "")
    return _STATUS_OF_TEXT.get(status, grpc.StatusCode.UNKNOWN), unquote(message)


def refusal(headers: Headers) -> tuple[grpc.StatusCode, str] | None:
    """What an answer says that is none of gRPC; None for one that is."""
    found = dict(headers)
    status, kind = found.get(":status", ""), found.get("content-type", "")
    if status == "200" and kind.startswith("application/grpc"):
        return None
    code = _STATUS_OF_HTTP.get(status, grpc.StatusCode.UNKNOWN)
    return code, f"the answer is no gRPC: HTTP status {status or 'missing'}, content type {kind or 'missing'}"


def reset_status(code: int) -> grpc.StatusCode:
    return _STATUS_OF_RESET.get(code, grpc.StatusCode.INTERNAL)


class MessageReader:
    """Puts messages together from what comes; `held` bytes are of a message that is not whole yet."""

    __slots__ = ("_encoding", "_held", "_max_bytes", "_parts", "_wanted")

    def __init__(self, *, max_bytes: int, encoding: str | None = None) -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._parts: list[bytes] = []
        self._held = 0
        self._wanted = MESSAGE_HEAD_BYTES

    @property
    def is_between_messages(self) -> bool:
        return not self._held

    def read(self, data: bytes) -> list[bytes]:
        """Messages that are whole now."""
        if not data:
            return []
        if not self._held and len(data) >= MESSAGE_HEAD_BYTES:
            size = int.from_bytes(data[1:5], "big")
            if len(data) == size + MESSAGE_HEAD_BYTES and size <= self._max_bytes:  # as nearly always
                return [self._plain(data[0], data[MESSAGE_HEAD_BYTES:])]
        self._parts.append(data)
        self._held += len(data)
        if self._held < self._wanted:
            return []
        return self._split(b"".join(self._parts))

    def _split(self, data: bytes) -> list[bytes]:
        messages: list[bytes] = []
        at, end = 0, len(data)
        self._wanted = MESSAGE_HEAD_BYTES
        while end - at >= MESSAGE_HEAD_BYTES:
            size = int.from_bytes(data[at + 1 : at + 5], "big")
            self._check(size)
            if end - at - MESSAGE_HEAD_BYTES < size:
                self._wanted = size + MESSAGE_HEAD_BYTES
                break
            start, at = at + MESSAGE_HEAD_BYTES, at + MESSAGE_HEAD_BYTES + size
            messages.append(self._plain(data[start - MESSAGE_HEAD_BYTES], data[start:at]))
        rest = data[at:]
        self._parts, self._held = ([rest] if rest else []), len(rest)
        return messages

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            # The same words as the library's, which `noetl_contracts.status` knows.
            raise MessageRefused(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._max_bytes})"
            )

    def _plain(self, flag: int, data: bytes) -> bytes:
        if not flag:
            return data
        if flag != 1 or self._encoding not in ("gzip", "deflate"):
            raise MessageRefused(
                grpc.StatusCode.UNIMPLEMENTED, f"messages compressed by {self._encoding!r} are not read"
            )
        inflate = zlib.decompressobj(wbits=31 if self._encoding == "gzip" else 15)
        try:
            plain = inflate.decompress(data, self._max_bytes + 1)
        except zlib.error as exc:
            raise MessageRefused(grpc.StatusCode.INTERNAL, f"a message cannot be decompressed: {exc}") from exc
        self._check(len(plain))
        if not inflate.eof:
            raise MessageRefused(grpc.StatusCode.INTERNAL, "a compressed message ends too soon")
        return plain


def message_bytes(message: bytes) -> bytes:
    """A message with its length before it."""
    return b"\x00" + len(message).to_bytes(4, "big") + message
