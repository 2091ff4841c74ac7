"""Chunks that were told and wait for their turn; few at a time, because who tells them is made to wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.values import dataclass

MAX_WAITING: Final = 4
"""Chunks of one call that may wait for their activation; a worker tells the next one when there is room."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """Where the streams of an activation stand: the next chunk is number `chunk` of streaming call number `call`.

    Calls are counted in the order in which a pipeline makes them, and begin again with each attempt; so what an
    earlier attempt has told lies before the place.
    """

    call: int = 0
    chunk: int = 0

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {"call": self.call, "chunk": self.chunk}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Place:
        """Read the stored form; nothing is the beginning."""
        return cls(call=value["call"], chunk=value["chunk"]) if value else cls()

    def precedes(self, told: Place) -> bool:
        """Whether a chunk may be told next: the following one of this call, or the first one of a later call."""
        return told == self or (told.call > self.call and told.chunk == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk by reference: what arcs see of it, and where its rows are."""

    step: str
    """The step whose call has told it."""
    task: str
    call: int
    chunk_index: int
    row_count: int
    has_more: bool
    reference: Mapping[str, Any]

    @property
    def scalars(self) -> dict[str, Any]:
        """What conditions may read."""
        return {"chunk_index": self.chunk_index, "row_count": self.row_count, "has_more": self.has_more}

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {
            "step": self.step,
            "task": self.task,
            "call": self.call,
            **self.scalars,
            "reference": dict(self.reference),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Chunk:
        """Read the stored form."""
        return cls(
            step=value["step"],
            task=value["task"],
            call=value["call"],
            chunk_index=value["chunk_index"],
            row_count=value["row_count"],
            has_more=value["has_more"],
            reference=value["reference"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkQueue:
    """The chunks of one activation that no arc has been tried for yet; `closed` when its call has ended."""

    activation: int
    waiting: tuple[Chunk, ...] = ()
    closed: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the next chunk has to wait with its worker."""
        return len(self.waiting) >= MAX_WAITING

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {
            "activation": self.activation,
            "waiting": [chunk.to_json() for chunk in self.waiting],
            "closed": self.closed,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ChunkQueue:
        """Read the stored form."""
        return cls(
            activation=value["activation"],
            waiting=tuple(Chunk.from_json(one) for one in value["waiting"]),
            closed=value["closed"],
        )
