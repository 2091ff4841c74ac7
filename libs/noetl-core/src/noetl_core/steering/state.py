"""What a paused execution keeps, and what a redriven one begins with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, Final

from noetl_core.canonical import JsonObject, encode
from noetl_core.steering.events import ExecutionInherited
from noetl_core.timestamps import format_time, parse_time
from noetl_core.values import dataclass

PART_BYTES: Final = 16 * 1024
"""What one event carries of an inheritance, unless a single entry is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCause:
    """An event whose decision waits until the execution is resumed; as much of it as deciding needs."""

    version: int
    event_type: str
    event_time: datetime
    node_name: str = ""
    command_id: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """The form that stored states have."""
        return {
            "version": self.version,
            "event_type": self.event_type,
            "event_time": format_time(self.event_time),
            "node_name": self.node_name,
            "command_id": self.command_id,
            "meta": dict(self.meta),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> HeldCause:
        """Read it back."""
        return cls(
            version=fields["version"],
            event_type=fields["event_type"],
            event_time=parse_time(fields["event_time"]),
            node_name=fields["node_name"],
            command_id=fields["command_id"],
            meta=fields["meta"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """What a redriven execution takes over: results of steps, which refer to data, and variables."""

    results: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    refs: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """The form in which it is stored."""
        return {"results": dict(self.results), "values": dict(self.values), "refs": dict(self.refs)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Inheritance:
        """Read it back."""
        return cls(results=fields["results"], values=fields["values"], refs=fields["refs"])

    def parts(self) -> Iterator[ExecutionInherited]:
        """The facts that tell it, each small enough for an event."""
        part: dict[str, dict[str, Any]] = {}
        size = 0
        for kind, entries in (("results", self.results), ("values", self.values), ("refs", self.refs)):
            for name, value in entries.items():
                added = len(name) + len(encode(value))
                if part and size + added > PART_BYTES:
                    yield ExecutionInherited(**part)
                    part, size = {}, 0
                part.setdefault(kind, {})[name] = value
                size += added
        if part:
            yield ExecutionInherited(**part)
