"""Frames of HTTP/2 (RFC 9113): their kinds, flags and errors, and how they are laid out."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
DEFAULT_WINDOW_BYTES: Final = 65_535
MAX_WINDOW_BYTES: Final = 2**31 - 1
DEFAULT_FRAME_BYTES: Final = 16_384
MAX_STREAM_ID: Final = 2**31 - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11
INADEQUATE_SECURITY: Final = 12

HEAD: Final = struct.Struct(">HBBBI")
"""Length (two bytes and one), kind, flags, stream."""
NUMBER: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")

_pack_head: Final = HEAD.pack


class ConnectionBroken(Exception):
    """The other side does not keep to the protocol, so nothing that it says can be understood any more."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def frame_head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    return _pack_head(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frame_head(len(payload), kind, flags, stream_id) + payload


def settings_frame(settings: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in settings.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    if len(payload) % _SETTING.size:
        raise ConnectionBroken(FRAME_SIZE_ERROR, "settings of an odd length")
    return list(_SETTING.iter_unpack(payload))


def window_frame(stream_id: int, increment: int) -> bytes:
    return frame_head(4, WINDOW_UPDATE, 0, stream_id) + NUMBER.pack(increment)


def reset_frame(stream_id: int, code: int) -> bytes:
    return frame_head(4, RST_STREAM, 0, stream_id) + NUMBER.pack(code)


def goaway_frame(last_stream_id: int, code: int, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, NUMBER.pack(last_stream_id) + NUMBER.pack(code) + reason.encode("utf-8", "replace"))


def ping_frame(payload: bytes, *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def without_padding(payload: bytes) -> bytes:
    """What a padded frame carries."""
    if not payload or payload[0] >= len(payload):
        raise ConnectionBroken(PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def header_frames(stream_id: int, block: bytes, *, end_stream: bool, max_frame_bytes: int) -> bytes:
    """A header block, in as many frames as it takes."""
    ends = END_STREAM if end_stream else 0
    if len(block) <= max_frame_bytes:
        return frame(HEADERS, END_HEADERS | ends, stream_id, block)
    parts = [block[at : at + max_frame_bytes] for at in range(0, len(block), max_frame_bytes)]
    last = len(parts) - 1
    return b"".join(
        frame(
            CONTINUATION if place else HEADERS,
            (END_HEADERS if place == last else 0) | (0 if place else ends),
            stream_id,
            part,
        )
        for place, part in enumerate(parts)
    )
