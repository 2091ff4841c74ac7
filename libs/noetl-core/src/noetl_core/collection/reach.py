"""What an event reaches: every digest that stands anywhere in its bytes.

Not the fields that are known to hold references: whoever adds a field, or puts a reference into a value of his own,
need not tell the collector of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

DIGEST_CHARACTERS: Final = 64
_HEX_RUN: Final = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64,}")
_LONGEST_RUN: Final = 512
"""Digests stand between quotes or slashes. What is a little longer may hold one; what is much longer is data."""
_OWN_CONTENT: Final = re.compile(rb'"content_sha256":"[0-9a-f]{64}"')
"""Says what makes the event itself; the first key of this name is the envelope's, since only texts stand before it."""

FIELD_BITS: Final = 27
_FIELDS: Final = 4


def digests_in(body: bytes) -> Iterator[str]:
    """Every run of characters in an event that could be the digest of a payload; some of them are not."""
    return digests_of(_OWN_CONTENT.sub(b"", body, count=1))


def digests_of(data: bytes) -> Iterator[str]:
    """The same for any bytes."""
    for run in _HEX_RUN.finditer(data):
        start, end = run.span()
        if end - start > _LONGEST_RUN:
            continue
        for first in range(start, end - DIGEST_CHARACTERS + 1):
            yield data[first : first + DIGEST_CHARACTERS].decode("ascii")


class Reached:
    """The digests that were seen, in 16 MiB however many they are (or in another power of two).

    It never forgets one. It may take one for seen that was not, which keeps that payload for now; `salt` chooses
    which bits of a digest count, so the next collection errs elsewhere.
    """

    def __init__(self, *, salt: int = 0, field_bits: int = FIELD_BITS) -> None:
        self._bits = bytearray(2**field_bits // 8)
        self._field_bits = field_bits
        self._shift = salt % (4 * DIGEST_CHARACTERS - _FIELDS * field_bits)

    def add(self, sha256: str) -> None:
        """This one is reached."""
        for place in self._places(sha256):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, sha256: object) -> bool:
        return isinstance(sha256, str) and all(
            self._bits[place >> 3] & (1 << (place & 7)) for place in self._places(sha256)
        )

    def _places(self, sha256: str) -> Iterator[int]:
        value = int(sha256, 16) >> self._shift
        for _ in range(_FIELDS):
            yield value & (2**self._field_bits - 1)
            value >>= self._field_bits
