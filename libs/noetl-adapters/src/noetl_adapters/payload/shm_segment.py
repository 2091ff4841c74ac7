"""One payload in shared memory: what stands before its bytes, and what must be right before anybody takes them.

A segment begins with the header that other runtimes know (`NOETLIPC`, version, length of the payload: 20 bytes). What
only we compare follows it, closed by a checksum of all that stands before; the payload begins at `DATA_OFFSET`, which
is aligned for Arrow's buffers.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from noetl_adapters.payload.tiers import Miss

MAGIC: Final = b"NOETLIPC"
VERSION: Final = 1
DATA_OFFSET: Final = 256

_HEADER: Final = struct.Struct("<8sIQ")
_FACTS: Final = struct.Struct("<32s32s32s32sQI")
_SEAL: Final = struct.Struct("<I")
_SEALED_BYTES: Final = _HEADER.size + _FACTS.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Which node this is, and which of its lives."""

    node_id: str
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What stands before the payload."""

    length: int
    sha256: str
    schema_digest: str
    machine_digests: tuple[bytes, bytes]
    generation: int
    """Tells two segments of one name apart: whoever compared the bytes of one knows nothing of the other."""
    crc32: int
    """Of the payload: its digest was compared before it came here; this tells that nothing happened to it since."""

    @property
    def size(self) -> int:
        """Of the whole segment."""
        return DATA_OFFSET + self.length

    def to_bytes(self) -> bytes:
        """The first `DATA_OFFSET` bytes of the segment."""
        sealed = _HEADER.pack(MAGIC, VERSION, self.length) + _FACTS.pack(
            bytes.fromhex(self.sha256),
            bytes.fromhex(self.schema_digest),
            *self.machine_digests,
            self.generation,
            self.crc32,
        )
        return (sealed + _SEAL.pack(zlib.crc32(sealed))).ljust(DATA_OFFSET, b"\0")


def machine_digests(machine: Machine) -> tuple[bytes, bytes]:
    """Names of any length in places of one length."""
    return sha256(machine.node_id.encode()).digest(), sha256(machine.boot_id.encode()).digest()


def read_segment(start: bytes, *, file_bytes: int, machine: Machine, expected_sha256: str | None) -> Segment | Miss:
    """What the first bytes of a file say, or what is wrong with them."""
    if len(start) < DATA_OFFSET:
        return Miss.TRUNCATED
    magic, version, length = _HEADER.unpack_from(start)
    (seal,) = _SEAL.unpack_from(start, _SEALED_BYTES)
    if magic != MAGIC or version != VERSION or seal != zlib.crc32(start[:_SEALED_BYTES]):
        return Miss.CORRUPT
    payload_digest, schema_digest, node, boot, generation, crc32 = _FACTS.unpack_from(start, _HEADER.size)
    segment = Segment(
        length=length,
        sha256=payload_digest.hex(),
        schema_digest=schema_digest.hex(),
        machine_digests=(node, boot),
        generation=generation,
        crc32=crc32,
    )
    our_node, our_boot = machine_digests(machine)
    if node != our_node:
        return Miss.FOREIGN
    if boot != our_boot:
        return Miss.STALE
    if file_bytes != segment.size:
        return Miss.TRUNCATED
    if expected_sha256 is not None and segment.sha256 != expected_sha256:
        return Miss.CORRUPT
    return segment
