"""What a worker hands to the tasks of a Spark job that hold slots of a stage, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue

KEPT_BACK: Final = frozenset({"NOETL_TOKEN", "NOETL_TOKEN_FILE", "NOETL_NATS_TOKEN", "NOETL_NATS_TOKEN_FILE"})
"""Of the worker's variables, what no other process gets: slots have tokens of their own."""
_PREFIX: Final = "NOETL_"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOrder:
    """Everything but the slots themselves; it has a token, and travels only inside of what is pickled for tasks."""

    execution_id: int
    stage_id: str
    owner: str
    """Begins the id under which frames are claimed; the attempt at the task ends it."""
    pool: str
    locator: str
    """Of the worker, whose slots are where it is; empty if executors are elsewhere, and say so themselves."""
    max_distance: str
    rates: str
    """Where processes of this machine share token buckets; empty if executors are elsewhere."""
    slice_seconds: float
    """For how long new frames are begun."""
    token: str = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)
    token_seconds: float = 0.0
    """How long the token is good; heartbeats of frames that are kept bring others."""
    token_until: float = 0.0
    """When it ends, in seconds since 1970; 0 if nobody said. It ages while its task waits for a seat."""
    slots: int = 0
    """How many slots the job has, in all of its tasks."""
    driver_host: str = ""
    """The worker's host, for executors that may be on the same one; empty if they are its own processes."""

    def share_of_rates(self, held: int) -> float:
        """Which part of a rate is for a task with some of the slots: all of it where buckets are shared."""
        return 1.0 if self.rates or self.slots <= held else held / self.slots

    def token_left(self, now: float) -> float:
        """For how much longer the token is good; never for more than its life, since clocks differ."""
        left = self.token_until - now if self.token_until else self.token_seconds
        return max(0.0, min(left, self.token_seconds))

    def to_json(self) -> JsonObject:
        """As it is pickled."""
        return {
            "execution_id": self.execution_id,
            "stage_id": self.stage_id,
            "owner": self.owner,
            "pool": self.pool,
            "locator": self.locator,
            "max_distance": self.max_distance,
            "rates": self.rates,
            "slots": self.slots,
            "driver_host": self.driver_host,
            "slice_seconds": self.slice_seconds,
            "token": self.token,
            "token_seconds": self.token_seconds,
            "token_until": self.token_until,
            "variables": dict(self.variables),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SlotOrder:
        """As it arrives."""
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReport:
    """What became of the slots of one task."""

    frames: int = 0
    """How many have ended there."""
    left: Sequence[int] = ()
    """Slots to be taken up again: time was over, and there was work."""
    error: str = ""
    code: str = ""

    def to_json(self) -> JsonObject:
        """As the task gives it."""
        left: list[JsonValue] = list(self.left)
        return {"frames": self.frames, "left": left, "error": self.error, "code": self.code}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SlotReport:
        """A task that died has only an error."""
        return cls(**fields)


def variables_of_slots(variables: Mapping[str, str], others: Sequence[str]) -> dict[str, str]:
    """Our own settings without tokens, and what else is named."""
    return {
        name: value
        for name, value in variables.items()
        if (name.startswith(_PREFIX) and name not in KEPT_BACK) or name in others
    }
