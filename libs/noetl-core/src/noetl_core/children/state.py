"""What is known about calls that wait for children, on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.canonical import JsonObject, encode, sha256_hex
from noetl_core.payloads import PayloadRef
from noetl_core.values import dataclass

MAX_DEPTH: Final = 32
"""How many executions may stand above one."""

CALL_KEYS: Final = "call/"
"""Before every start key of a call; nobody else may begin one so."""

TIMED_OUT: Final = "timeout"
"""Status of a call that has waited long enough; its child goes on."""


def call_id(*, command_key: str, label: str, run: int) -> str:
    """Names one call of one task: the same in every attempt of its command, another one for every retry by a rule."""
    return sha256_hex(encode(["call", command_key, label, run]))[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentCall:
    """The call that waits for an execution: what its end has to resume."""

    command_id: str
    call_id: str
    step: str
    pool: str
    pipeline: bool = False
    """Whether its command was issued as a pipeline."""

    def to_json(self) -> JsonObject:
        """The form that events and stored states carry."""
        fields: JsonObject = {"pipeline": True} if self.pipeline else {}
        return {"command_id": self.command_id, "call_id": self.call_id, "step": self.step, "pool": self.pool, **fields}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ParentCall:
        """Read it back."""
        return cls(
            command_id=fields["command_id"],
            call_id=fields["call_id"],
            step=fields["step"],
            pool=fields["pool"],
            pipeline=bool(fields.get("pipeline")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingCall:
    """A call that starts a child; only one that waits is resumed by the child's end."""

    call_id: str
    command_id: str
    step: str
    pool: str
    waits: bool
    pipeline: bool = False
    """Whether its command was issued as a pipeline."""

    @property
    def start_key(self) -> str:
        """Under which the first start fixes the child for good."""
        return f"{CALL_KEYS}{self.call_id}"

    @property
    def waiting(self) -> ParentCall | None:
        """What the child's end has to resume."""
        if not self.waits:
            return None
        return ParentCall(
            command_id=self.command_id,
            call_id=self.call_id,
            step=self.step,
            pool=self.pool,
            pipeline=self.pipeline,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedCall:
    """Where a parked pipeline goes on; `status` says how the child ended, and is empty while nobody knows."""

    call_id: str
    child_execution_id: str
    pipeline: PayloadRef
    status: str = ""

    def to_json(self) -> JsonObject:
        """The form that events and stored states carry."""
        return {
            "call_id": self.call_id,
            "child_execution_id": self.child_execution_id,
            "pipeline": self.pipeline.to_json(),
            "status": self.status,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ParkedCall:
        """Read it back."""
        return cls(
            call_id=fields["call_id"],
            child_execution_id=fields["child_execution_id"],
            pipeline=PayloadRef.from_json(fields["pipeline"]),
            status=fields["status"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCall:
    """A child ended before the call that waits for it was parked: kept until it is, or until its step is left."""

    step: str
    status: str
