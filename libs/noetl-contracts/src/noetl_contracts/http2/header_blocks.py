"""Header blocks of HTTP/2 (HPACK, RFC 7541), for headers that are nearly the same in every call.

A writer puts what recurs into the table that both sides keep and never drops anything from it, so a block that was
written once can be written again as it is. A reader remembers what a block meant for as long as the table stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from hpack import HPACKDecodingError
from hpack.huffman_table import decode_huffman

from noetl_contracts.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionBroken

Header = tuple[str, str]
Headers = tuple[Header, ...]

TABLE_BYTES: Final = 4_096
_ENTRY_BYTES: Final = 32
_REMEMBERED_BLOCKS: Final = 256
_REMEMBERED_BYTES: Final = 1_024
"""Of one block; what recurs is short, because it stands in the table."""
_MAX_HEADERS: Final = 512
"""In a block; each may stand for as much as the whole table holds."""

_STATIC: Final[tuple[Header, ...]] = (
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
)
_STATIC_COUNT: Final = len(_STATIC)
_STATIC_INDEX: Final = {header: place for place, header in reversed(list(enumerate(_STATIC, start=1)))}
# A malformed text is refused by the names of what it is, not by what its bytes would be in some encoding.
_ENCODING: Final = "latin-1"


class HeaderWriter:
    """The writing side of a connection's headers."""

    def __init__(self) -> None:
        self._index: dict[Header, int] = {}
        self._bytes = 0
        self._table_bytes = TABLE_BYTES
        self._must_tell_size = False
        self.generation = 0
        """Moves whenever blocks that were written before would mean something else."""

    def limit_table(self, table_bytes: int) -> None:
        """The other side keeps so much; less than usual, and it is not used at all from the next block on."""
        if table_bytes < self._table_bytes:
            self._index.clear()
            self._bytes = self._table_bytes = 0
            self._must_tell_size = True
            self.generation += 1

    def write(self, recurring: Iterable[Header], once: Iterable[Header] = ()) -> bytes:
        """Headers as a block: those that come again and again first."""
        parts: list[bytes] = []
        if self._must_tell_size:
            self._must_tell_size = False
            self.generation += 1  # a block says so once
            parts.append(b"\x20")
        for header in recurring:
            static = _STATIC_INDEX.get(header)
            if static is not None:
                parts.append(_number(static, 7, 0x80))
                continue
            place = self._index.get(header)
            if place is not None:
                parts.append(_number(_STATIC_COUNT + len(self._index) - place, 7, 0x80))
            else:
                spelt = _text(header[0]) + _text(
                    header[1]
                )  # before the table moves: what cannot be sent must not be in it
                parts.append((b"\x40" if self._keep(header) else b"\x00") + spelt)
        parts.extend(map(literal, once))
        return b"".join(parts)

    def _keep(self, header: Header) -> bool:
        size = len(header[0]) + len(header[1]) + _ENTRY_BYTES
        if self._bytes + size > self._table_bytes:
            return False  # what is in the table stays: nothing that was written before gets another meaning
        self._bytes += size
        self._index[header] = len(self._index)
        self.generation += 1
        return True


def literal(header: Header) -> bytes:
    """A header that leaves the table alone."""
    return b"\x00" + _text(header[0]) + _text(header[1])


def _text(text: str) -> bytes:
    raw = text.encode(_ENCODING)
    return _number(len(raw), 7, 0) + raw


def _number(value: int, prefix_bits: int, flags: int) -> bytes:
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((flags | value,))
    parts = bytearray((flags | limit,))
    value -= limit
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


class HeaderReader:
    """The reading side of a connection's headers."""

    def __init__(self) -> None:
        self._table: deque[Header] = deque()
        self._bytes = 0
        self._table_bytes = TABLE_BYTES
        self._known: dict[bytes, Headers] = {}

    def read(self, block: bytes) -> Headers:
        """What a block says; raises `ConnectionBroken` if it cannot be read, since no later one could be either."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            headers, moved = self._read(block)
        except IndexError:
            raise ConnectionBroken(COMPRESSION_ERROR, "a header block ends too soon") from None
        except HPACKDecodingError as exc:
            raise ConnectionBroken(COMPRESSION_ERROR, str(exc)) from exc
        if moved:
            self._known.clear()
        elif len(self._known) < _REMEMBERED_BLOCKS and len(block) <= _REMEMBERED_BYTES:
            self._known[block] = headers
        return headers

    def _read(self, block: bytes) -> tuple[Headers, bool]:
        headers: list[Header] = []
        at, end, moved = 0, len(block), False
        while at < end:
            first = block[at]
            if first & 0x80:
                index = first & 0x7F
                if index == 0x7F:
                    index, at = _read_number(block, at, 7)
                else:
                    at += 1
                headers.append(self._header(index))
                _check_count(headers)
                continue
            if first & 0xE0 == 0x20:
                size, at = _read_number(block, at, 5)
                if size > TABLE_BYTES or headers:
                    raise ConnectionBroken(COMPRESSION_ERROR, "the table of headers is resized out of turn")
                self._resize(size)
                moved = True
                continue
            is_kept = bool(first & 0x40)
            index, at = _read_number(block, at, 6 if is_kept else 4)
            if index:
                name = self._header(index)[0]
            else:
                name, at = _read_text(block, at)
            value, at = _read_text(block, at)
            header = (name, value)
            headers.append(header)
            _check_count(headers)
            if is_kept:
                self._table.appendleft(header)
                self._bytes += len(name) + len(value) + _ENTRY_BYTES
                self._resize(self._table_bytes)
                moved = True
        return tuple(headers), moved

    def _header(self, index: int) -> Header:
        if 0 < index <= _STATIC_COUNT:
            return _STATIC[index - 1]
        place = index - _STATIC_COUNT - 1
        if not 0 <= place < len(self._table):
            raise ConnectionBroken(COMPRESSION_ERROR, f"there is no header {index}")
        return self._table[place]

    def _resize(self, table_bytes: int) -> None:
        self._table_bytes = table_bytes
        while self._bytes > table_bytes:
            name, value = self._table.pop()
            self._bytes -= len(name) + len(value) + _ENTRY_BYTES


def _check_count(headers: list[Header]) -> None:
    if len(headers) > _MAX_HEADERS:
        raise ConnectionBroken(ENHANCE_YOUR_CALM, f"more than {_MAX_HEADERS} headers in a block")


def _read_number(block: bytes, at: int, prefix_bits: int) -> tuple[int, int]:
    limit = (1 << prefix_bits) - 1
    value = block[at] & limit
    at += 1
    if value < limit:
        return value, at
    shift = 0
    while True:
        part = block[at]
        at += 1
        value += (part & 0x7F) << shift
        if part < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise ConnectionBroken(COMPRESSION_ERROR, "a number in a header block is too large")


def _read_text(block: bytes, at: int) -> tuple[str, int]:
    is_huffman = block[at] & 0x80
    length = block[at] & 0x7F
    if length == 0x7F:
        length, at = _read_number(block, at, 7)
    else:
        at += 1
    raw = block[at : at + length]
    if len(raw) < length:
        raise IndexError
    return (decode_huffman(raw) if is_huffman else raw).decode(_ENCODING), at + length
