"""An internal command: which control expressions a worker evaluates because they need more than events tell."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from noetl_core.canonical import encode, sha256_hex
from noetl_core.commands.events import CommandIssued
from noetl_core.streams.state import Chunk
from noetl_core.values import dataclass


class Place(StrEnum):
    """Where in the life of a step the expressions stand; they are evaluated together, in their written order."""

    ADMIT = "admit"
    """`admit` rules and the timeout, before the step starts."""
    LEAVE = "leave"
    """`set` of the step, `when` of its arcs, and `set` of those that fire."""
    LOOP = "loop"
    """`in` and `max_in_flight` of a loop, when its step has been entered."""
    CHUNK = "chunk"
    """`when` of arcs that take a chunk, and `set` of those that fire, when its turn has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What is to be evaluated, and everything that the decision which waits for it must know to go on."""

    place: Place
    step: str
    activation: int
    cause: int
    """Version of the event whose decision needs the values: with it, the command's id is derived from its cause."""
    now: str
    """What `now()` gives: the time of that event."""
    consumes: tuple[str, ...] = ()
    """Of an admission: causes of the arrivals that it answers, the last of which is the one that `result` shows."""
    error: Mapping[str, Any] | None = None
    """Of a step that failed before it had an outcome of its own: why."""
    chunk: Chunk | None = None
    """What arcs are tried for, or a step is to be entered for; a worker has its rows."""

    @property
    def node(self) -> str:
        """The name of the command in events: it belongs to a step, and is none."""
        return f"{self.step}:evaluate_{self.place.value}"

    def to_json(self) -> dict[str, Any]:
        """The form that events and commands carry."""
        fields: dict[str, Any] = {
            "place": self.place.value,
            "step": self.step,
            "activation": self.activation,
            "cause": self.cause,
            "now": self.now,
        }
        if self.consumes:
            fields["consumes"] = list(self.consumes)
        if self.error is not None:
            fields["error"] = dict(self.error)
        if self.chunk is not None:
            fields["chunk"] = self.chunk.to_json()
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Evaluation:
        """Read what `to_json` wrote."""
        return cls(
            place=Place(fields["place"]),
            step=fields["step"],
            activation=fields["activation"],
            cause=fields["cause"],
            now=fields["now"],
            consumes=tuple(fields.get("consumes", ())),
            error=fields.get("error"),
            chunk=Chunk.from_json(fields["chunk"]) if fields.get("chunk") else None,
        )

    def issue(
        self, *, execution_id: int, pool: str, cause_step: str, attempt: int = 1, stage_id: str = ""
    ) -> CommandIssued:
        """The command that asks for it; its id cannot be that of a step's own command."""
        identity = ["evaluation", str(execution_id), self.node, self.cause, attempt]
        return CommandIssued(
            command_id=sha256_hex(encode(identity))[:32],
            step=self.node,
            activation=self.activation,
            attempt=attempt,
            pool=pool,
            cause_step=cause_step,
            evaluation=self.to_json(),
            stage_id=stage_id,
        )
