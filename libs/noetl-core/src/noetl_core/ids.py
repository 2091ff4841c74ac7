"""Identities: snowflakes for what is started from outside, derived ids for everything that is decided."""

from __future__ import annotations

from typing import Final, TypeAlias

from noetl_core.canonical import encode, sha256_hex
from noetl_core.errors import InvalidInput

ExecutionId: TypeAlias = int
EventId: TypeAlias = int
CommandId: TypeAlias = str
EpochId: TypeAlias = str
TenantId: TypeAlias = str
OrganizationId: TypeAlias = str
WorkerId: TypeAlias = str

SNOWFLAKE_EPOCH_MS: Final = 1_704_067_200_000
"""2024-01-01T00:00:00Z; 41 bits of milliseconds from here last until 2093."""

MAX_NODE: Final = 2**10 - 1
MAX_ID: Final = 2**63 - 1

_NODE_BITS: Final = 10
_SEQUENCE_BITS: Final = 12
_MS_SHIFT: Final = _NODE_BITS + _SEQUENCE_BITS
_SEQUENCE_MASK: Final = 2**_SEQUENCE_BITS - 1
_MAX_TICK: Final = 2 ** (41 + _SEQUENCE_BITS) - 1


class Snowflake:
    """Ids of one node: 41 bits of time, 10 of node, 12 of sequence, each id above the one before.

    Time is an argument. If it stands still or steps back, ids go on from the last one; no id is given twice
    as long as no other generator uses the same node number.
    """

    def __init__(self, node: int) -> None:
        if not 0 <= node <= MAX_NODE:
            raise InvalidInput(f"a snowflake node is a number from 0 to {MAX_NODE}, not {node}")
        self._node = node << _SEQUENCE_BITS
        self._last_tick = -1

    def next(self, now_ms: int) -> int:
        """A new id for a moment, given as Unix milliseconds."""
        # A tick is the time with the sequence below it, so a full sequence carries into the next millisecond.
        tick = (now_ms - SNOWFLAKE_EPOCH_MS) << _SEQUENCE_BITS
        if tick <= self._last_tick:
            tick = self._last_tick + 1
        if now_ms < SNOWFLAKE_EPOCH_MS or tick > _MAX_TICK:
            raise InvalidInput(f"no snowflake can tell the time {now_ms} ms; is the clock right?")
        self._last_tick = tick
        return (tick >> _SEQUENCE_BITS) << _MS_SHIFT | self._node | tick & _SEQUENCE_MASK


def snowflake_ms(snowflake: int) -> int:
    """When an id was made, as Unix milliseconds."""
    return (snowflake >> _MS_SHIFT) + SNOWFLAKE_EPOCH_MS


def first_snowflake(unix_ms: int) -> int:
    """Lower bound of all ids made at or after a moment; ids of earlier moments are below it."""
    return max(unix_ms - SNOWFLAKE_EPOCH_MS, 0) << _MS_SHIFT


def parse_id(text: str, *, what: str = "id") -> int:
    """The number of an id, written as digits and in no second way: ids are compared and hashed as text."""
    # Length first: int() of very many digits is slow, and then fails differently.
    if 0 < len(text) <= 19 and text.isascii() and text.isdecimal() and text[0] != "0":
        number = int(text)
        if number <= MAX_ID:
            return number
    raise InvalidInput(f"{what} must be the digits of a positive 63-bit number, not {text[:40]!r}", what=what)


def command_id(*, execution_id: ExecutionId, step: str, activation: int, index: int, attempt: int) -> CommandId:
    """The id of a command, derived from its cause: whoever decides it again issues the same command."""
    cause = ["command", str(execution_id), step, activation, index, attempt]
    return sha256_hex(encode(cause))[:32]


def effect_key(*, execution_id: ExecutionId, step: str, activation: int, index: int | None = None) -> str:
    """The key for effects outside: the same in every attempt of a call, and of an item."""
    key = f"{execution_id}/{step}/{activation}"
    return key if index is None else f"{key}/{index}"


def epoch_id(*, execution_id: ExecutionId, step: str, attempt: int) -> EpochId:
    """The id of one run of a loop; the attempt comes from the event log, never from a clock."""
    return f"loop_{execution_id}_{step}_{attempt}"


def stage_id(*, execution_id: ExecutionId, step: str, activation: int) -> str:
    """The id of one run of a stage; it names its execution, so that whoever has only the id finds the log."""
    return f"{execution_id}-{sha256_hex(encode(['stage', str(execution_id), step, activation]))[:16]}"


def frame_id(*, stage_id: str, index: int) -> str:
    """The id of a frame, the same in all its attempts."""
    return f"{stage_id}-{index}"


def stage_of_frame(frame_id: str) -> str:
    """The stage that a frame belongs to."""
    return frame_id.rpartition("-")[0]


def execution_of(work_id: str, *, what: str) -> ExecutionId:
    """The execution that a stage or a frame belongs to."""
    return parse_id(work_id.partition("-")[0], what=what)
