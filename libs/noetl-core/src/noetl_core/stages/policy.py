"""The bounds of a frame as a stage has fixed them: numbers, whatever templates stood for them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.loops.collection import LoopInvalid
from noetl_core.playbook.loop_model import FramePolicy, is_late
from noetl_core.values import dataclass

MAX_ROWS: Final = 100_000
MAX_SECONDS: Final = 86_400.0


class InvalidFramePolicy(LoopInvalid):
    """What a template of `frame` gave is no bound of a frame."""

    code = "frame.invalid_policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameBounds:
    """How much one frame may hold, how long its lease lasts, and how often it is tried."""

    max_rows: int = 1
    max_bytes: int = 67_108_864
    max_seconds: float = 30.0
    lease_seconds: float = 120.0
    heartbeat_seconds: float = 30.0
    process: str = "row"
    row_concurrency: int = 1
    retry_mode: str = "whole_frame"
    max_attempts: int = 3
    on_failure: str = "fail"

    def to_json(self) -> JsonObject:
        """The form that events, stored states and workers have."""
        return {
            "max_rows": self.max_rows,
            "max_bytes": self.max_bytes,
            "max_seconds": self.max_seconds,
            "lease_seconds": self.lease_seconds,
            "heartbeat_seconds": self.heartbeat_seconds,
            "process": self.process,
            "row_concurrency": self.row_concurrency,
            "retry_mode": self.retry_mode,
            "max_attempts": self.max_attempts,
            "on_failure": self.on_failure,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> FrameBounds:
        """Read it back; what an older event does not tell has its default."""
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})


COUNTS: Final = ("max_rows", "max_bytes", "row_concurrency", "max_attempts")
AMOUNTS: Final = ("max_seconds", "lease_seconds", "heartbeat_seconds")


def bounds_of(policy: FramePolicy, values: Mapping[str, JsonValue]) -> FrameBounds:
    """The bounds, with what the templates of a policy gave; raises `InvalidFramePolicy`."""
    counts = {name: _count(name, values[name]) for name in COUNTS}
    amounts = {name: _seconds(name, values[name]) for name in AMOUNTS}
    if counts["max_rows"] > MAX_ROWS:
        raise InvalidFramePolicy(f"'max_rows' of a frame is at most {MAX_ROWS}, not {counts['max_rows']}")
    lease, heartbeat = amounts["lease_seconds"], amounts["heartbeat_seconds"]
    if is_late(heartbeat, lease_seconds=lease):
        if isinstance(policy.heartbeat_seconds, str) or policy.heartbeat_seconds != FramePolicy().heartbeat_seconds:
            raise InvalidFramePolicy(
                f"'heartbeat_seconds' of a frame is at most half of its lease of {lease:g} s, not {heartbeat:g}"
            )
        amounts["heartbeat_seconds"] = lease / 4  # only the lease is written, and shorter than the default
    return FrameBounds(
        max_rows=counts["max_rows"],
        max_bytes=counts["max_bytes"],
        row_concurrency=counts["row_concurrency"],
        max_attempts=counts["max_attempts"],
        max_seconds=amounts["max_seconds"],
        lease_seconds=amounts["lease_seconds"],
        heartbeat_seconds=amounts["heartbeat_seconds"],
        process=policy.process.value,
        retry_mode=policy.retry_mode.value,
        on_failure=policy.on_failure.value,
    )


def _count(name: str, value: JsonValue) -> int:
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 16 else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidFramePolicy(f"{name!r} of a frame is a whole number from 1, not {value!r}"[:500])
    return number


def _seconds(name: str, value: JsonValue) -> float:
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        message = f"{name!r} of a frame is a number of seconds above 0 and up to {MAX_SECONDS:g}, not {value!r}"
        raise InvalidFramePolicy(message[:500])
    return float(value)
