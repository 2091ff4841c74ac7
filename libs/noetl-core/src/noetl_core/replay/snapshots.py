"""What a replay had come to at a version, sealed so that whoever begins with it can tell whether he may."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from noetl_core.canonical import JsonObject, decode, encode, sha256_hex
from noetl_core.errors import Corrupt, NoetlError
from noetl_core.fold import prune
from noetl_core.replay.history import Replayed, Seed
from noetl_core.replay.payload_uses import PayloadUses
from noetl_core.replay.sizes import attribute_bytes
from noetl_core.state_json import FORMAT as STATE_FORMAT
from noetl_core.state_json import decode_state, encode_state
from noetl_core.surfaces.checksums import SurfaceChecksum, in_order
from noetl_core.surfaces.shapes import FORMAT as ROW_FORMAT
from noetl_core.surfaces.shapes import Row, Surface, key_of
from noetl_core.timestamps import format_time
from noetl_core.upcasting.releases import UPCASTERS
from noetl_core.values import dataclass, replace

PART_BYTES: Final = 1024 * 1024
"""Of a body before it is packed; a part is what is stored and sent at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """By what a history becomes a state. States that were made by other rules are not begun with."""

    code_version: str
    upcasters: str = UPCASTERS.digest
    row_format: int = ROW_FORMAT
    state_format: int = STATE_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What is said of a snapshot; `checksum` is over all the rest, and `body_sha256` over what it holds."""

    execution_id: int
    tenant_id: str
    organization_id: str
    position: int
    event_id: int
    event_checksum: str
    """Of the event at `position`, which seals everything before it: the log has the same, or this is of another log."""
    reached_at: datetime
    rules: Rules
    payload_root: str
    encryption: Mapping[str, str]
    """Whose it is and what it is sealed with; one that is for somebody else, or sealed otherwise, is not opened."""
    surfaces: Mapping[str, str]
    row_counts: Mapping[str, int]
    parts: int
    body_sha256: str
    checksum: str = ""

    def sealed(self) -> str:
        """The checksum that it must have: SHA-256 over the canonical JSON of everything but the checksum."""
        return sha256_hex(
            encode(
                {
                    "execution_id": str(self.execution_id),
                    "tenant_id": self.tenant_id,
                    "organization_id": self.organization_id,
                    "position": self.position,
                    "event_id": str(self.event_id),
                    "event_checksum": self.event_checksum,
                    "reached_at": format_time(self.reached_at),
                    "code_version": self.rules.code_version,
                    "upcasters": self.rules.upcasters,
                    "row_format": self.rules.row_format,
                    "state_format": self.rules.state_format,
                    "payload_root": self.payload_root,
                    "encryption": dict(self.encryption),
                    "surfaces": dict(self.surfaces),
                    "row_counts": dict(self.row_counts),
                    "parts": self.parts,
                    "body_sha256": self.body_sha256,
                }
            )
        )


def encryption_context(execution_id: int, *, tenant_id: str, organization_id: str) -> dict[str, str]:
    """What bodies are bound to. They hold what the log holds in the clear, and are stored beside it, so as it is."""
    return {
        "cipher": "none",
        "execution_id": str(execution_id),
        "organization_id": organization_id,
        "tenant_id": tenant_id,
    }


def take_snapshot(replayed: Replayed, *, code_version: str) -> tuple[Snapshot, list[bytes]]:
    """The snapshot of a replay, and its body in packed parts."""
    state = prune(replayed.state)
    execution = state.execution
    if replayed.reached_at is None:
        raise Corrupt(f"nothing of execution {execution.execution_id} has been replayed")
    lines = [encode_state(state), encode(replayed.payloads.to_json())]
    surfaces: dict[str, str] = {}
    for surface in Surface:
        checksum, rows = SurfaceChecksum(), replayed.rows[surface]
        for key in in_order(rows):
            checksum.add(key, rows[key])
            lines.append(encode(dict(rows[key])))
        surfaces[str(surface)] = checksum.hexdigest()
    parts, body_sha256 = _packed(lines)
    snapshot = Snapshot(
        execution_id=execution.execution_id,
        tenant_id=execution.tenant_id,
        organization_id=execution.organization_id,
        position=state.stream_version,
        event_id=state.last_event_id,
        event_checksum=replayed.checksum,
        reached_at=replayed.reached_at,
        rules=Rules(code_version=code_version, upcasters=replayed.upcasters),
        payload_root=replayed.payloads.root(),
        encryption=encryption_context(
            execution.execution_id, tenant_id=execution.tenant_id, organization_id=execution.organization_id
        ),
        surfaces=surfaces,
        row_counts={str(surface): len(replayed.rows[surface]) for surface in Surface},
        parts=len(parts),
        body_sha256=body_sha256,
    )
    return replace(snapshot, checksum=snapshot.sealed()), parts


def open_snapshot(snapshot: Snapshot, parts: Sequence[bytes], *, execution_id: int, rules: Rules) -> Seed:
    """Where a replay of this execution by these rules may begin; raises `Corrupt` for whatever is not that.

    Whether its last event is the log's is for whoever has the log to say.
    """
    _check_label(snapshot, execution_id=execution_id, rules=rules)
    try:
        body = b"".join(zlib.decompress(part) for part in parts)
        if len(parts) != snapshot.parts or sha256_hex(body) != snapshot.body_sha256:
            raise Corrupt("its body is not the one that was sealed")
        lines = iter(body.split(b"\n")[:-1])
        state, payloads = decode_state(next(lines)), PayloadUses.from_json(_object(next(lines)))
        rows = {surface: dict(_rows(surface, lines, snapshot)) for surface in Surface}
        if next(lines, None) is not None:
            raise Corrupt("it holds more rows than it says")
    except (zlib.error, StopIteration, TypeError, ValueError, KeyError) as exc:
        raise Corrupt(f"it cannot be read: {exc!r}") from exc
    if (state.execution.execution_id, state.stream_version) != (execution_id, snapshot.position):
        raise Corrupt("its state is of another execution or version")
    if (state.last_event_id, payloads.root()) != (snapshot.event_id, snapshot.payload_root):
        raise Corrupt("its state does not fit what is said of it")
    return Seed(
        state=state,
        rows=rows,
        payloads=payloads,
        checksum=snapshot.event_checksum,
        reached_at=snapshot.reached_at,
        attribute_bytes=sum(map(attribute_bytes, rows[Surface.BUSINESS_OBJECTS].values())),
        snapshot_checksum=snapshot.checksum,
    )


def positions_to_keep(positions: Iterable[int], *, interval: int) -> set[int]:
    """Of snapshots at multiples of an interval: dense near the newest, ever sparser before, a logarithm of them in all.

    What is not kept once is not wanted later either.
    """
    numbers = {position // interval for position in positions}
    newest = max(numbers, default=0)
    return {number * interval for number in numbers if newest - number < 2 * (number & -number)}


def _check_label(snapshot: Snapshot, *, execution_id: int, rules: Rules) -> None:
    if snapshot.sealed() != snapshot.checksum:
        raise Corrupt("what is said of it is not what was sealed")
    if snapshot.rules != rules:
        raise Corrupt("it was made by other rules")
    expected = encryption_context(execution_id, tenant_id=snapshot.tenant_id, organization_id=snapshot.organization_id)
    if dict(snapshot.encryption) != expected or snapshot.execution_id != execution_id:
        raise Corrupt("it is of another execution, or sealed otherwise")


def _packed(lines: Iterable[bytes]) -> tuple[list[bytes], str]:
    parts: list[bytes] = []
    gathered = bytearray()
    body = hashlib.sha256()
    for line in lines:
        gathered += line + b"\n"
        if len(gathered) >= PART_BYTES:
            body.update(gathered)
            parts.append(zlib.compress(gathered, 1))
            gathered = bytearray()
    if gathered:
        body.update(gathered)
        parts.append(zlib.compress(gathered, 1))
    return parts, body.hexdigest()


def _rows(surface: Surface, lines: Iterator[bytes], snapshot: Snapshot) -> Iterator[tuple[str, Row]]:
    checksum = hashlib.sha256()
    for _ in range(snapshot.row_counts[str(surface)]):
        line = next(lines, None)
        if line is None:
            raise Corrupt("it holds fewer rows than it says")
        checksum.update(line + b"\n")
        row = _object(line)
        yield key_of(surface, row), row
    if checksum.hexdigest() != snapshot.surfaces[str(surface)]:
        raise Corrupt(f"its rows of {surface} are not those that it says")


def _object(line: bytes) -> JsonObject:
    try:
        value: Any = decode(line)
    except NoetlError as exc:
        raise Corrupt(f"it cannot be read: {exc.message}") from exc
    if not isinstance(value, dict):
        raise Corrupt("it holds something that is no object")
    return value
