"""Routing state at a version, sealed so that a planner that takes over can tell whether it may begin with it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from enum import StrEnum
from json import JSONEncoder
from typing import Any, Final

from noetl_core.canonical import encode, sha256_hex
from noetl_core.errors import Corrupt
from noetl_core.journal import Settled
from noetl_core.state_json import FORMAT, decode_state, state_object
from noetl_core.upcasting.releases import UPCASTERS
from noetl_core.values import dataclass

MAX_BYTES: Final = 4 * 1024 * 1024
"""Of a packed body: well below what a message may have."""
MAX_UNPACKED_BYTES: Final = 16 * MAX_BYTES


class Refusal(StrEnum):
    """Why a snapshot is not begun with; the log is read from its first event instead."""

    OTHER_EXECUTION = "other_execution"
    OTHER_RULES = "other_rules"
    """Another release of the core has made it."""
    OTHER_FORMAT = "other_format"
    DAMAGED = "damaged"
    """Its body is not the one that was sealed, or no state."""
    OTHER_LOG = "other_log"
    """The log has another event at its version, or none."""
    UNAVAILABLE = "unavailable"
    """Whoever keeps it did not answer."""
    MISLEADING = "misleading"
    """A turn failed on top of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSnapshot:
    """A state that a planner had folded, and everything that is needed to doubt it."""

    execution_id: int
    stream_version: int
    event_checksum: str
    """Of the event at that version: the log has the same, or this is of another log."""
    rules: str
    """By which events became this state; see `rules_digest`."""
    state_format: int
    body: bytes
    """The state as packed JSON."""
    body_sha256: str
    """Of the body as it is stored."""


def rules_digest(code_version: str, *, upcasters: str = UPCASTERS.digest) -> str:
    """Names the rules by which a history becomes a state: the sources of the core, and how old events are read."""
    return sha256_hex(encode({"code_version": code_version, "upcasters": upcasters}))


def take_routing(settled: Settled, *, rules: str) -> RoutingSnapshot | None:
    """The snapshot of a state; None if it is too large to be kept.

    The state of the journal was pruned by it. Names stand in the order in which they came to be, unlike in canonical
    bytes: an expression may list them, and has to give the same before and after.
    """
    state = settled.state
    spelt = _IN_ORDER.encode(state_object(state)).encode()
    if len(spelt) > MAX_UNPACKED_BYTES or len(body := zlib.compress(spelt, 1)) > MAX_BYTES:
        return None
    return RoutingSnapshot(
        execution_id=state.execution.execution_id,
        stream_version=state.stream_version,
        event_checksum=settled.event_checksum,
        rules=rules,
        state_format=FORMAT,
        body=body,
        body_sha256=sha256_hex(body),
    )


def open_routing(snapshot: RoutingSnapshot, *, execution_id: int, rules: str) -> Settled | Refusal:
    """What a journal of this execution may begin with by these rules, or why it may not.

    Whether the event at its version is the log's is for whoever has the log to say.
    """
    if snapshot.execution_id != execution_id:
        return Refusal.OTHER_EXECUTION
    if snapshot.rules != rules:
        return Refusal.OTHER_RULES
    if snapshot.state_format != FORMAT:
        return Refusal.OTHER_FORMAT
    if sha256_hex(snapshot.body) != snapshot.body_sha256:
        return Refusal.DAMAGED
    try:
        unpacking = zlib.decompressobj()
        spelt = unpacking.decompress(snapshot.body, MAX_UNPACKED_BYTES)
        if not unpacking.eof or unpacking.unused_data:
            return Refusal.DAMAGED
        state = decode_state(spelt)
    except (zlib.error, Corrupt):
        return Refusal.DAMAGED
    if state.execution.execution_id != execution_id:
        return Refusal.OTHER_EXECUTION
    if state.stream_version != snapshot.stream_version or snapshot.stream_version < 1:
        return Refusal.DAMAGED
    return Settled(state=state, event_checksum=snapshot.event_checksum)


def _plain(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a state has no {type(value).__name__}")


_IN_ORDER: Final = JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain)
