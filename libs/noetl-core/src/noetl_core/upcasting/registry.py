"""Which version of an event becomes which, by whose function, and a digest that says so of every state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from noetl_core.canonical import encode, sha256_hex
from noetl_core.envelope import Envelope
from noetl_core.errors import Corrupt

Change = Callable[[Envelope], Envelope]
"""Pure: the same event gives the same event. Type and content may change; whose event it is and when it was may not."""

_FIXED: Final = ("event_id", "execution_id", "tenant_id", "organization_id", "event_time", "idempotency_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcaster:
    """Reads one version of a type as a later one. `revision` grows when the function gives something else."""

    event_type: str
    from_version: int
    to_version: int
    change: Change
    revision: int = 1
    to_type: str = ""
    """The name that the type has from there on, if that changes."""

    def __post_init__(self) -> None:
        if self.from_version < 1 or self.to_version <= self.from_version:
            raise ValueError(
                f"an upcaster of {self.event_type!r} leads to a later version, "
                f"not from {self.from_version} to {self.to_version}"
            )


class Upcasters:
    """A closed set of upcasters. Versions only grow, so every chain of them ends."""

    def __init__(self, upcasters: Iterable[Upcaster] = ()) -> None:
        self._by_source: dict[tuple[str, int], Upcaster] = {}
        for one in upcasters:
            source = (one.event_type, one.from_version)
            if source in self._by_source:
                raise ValueError(f"version {one.from_version} of {one.event_type!r} is upcast twice")
            self._by_source[source] = one
        self.digest: Final = sha256_hex(encode(self._transitions()))
        """Of the canonical JSON list of all `[schema, from, to, target schema, revision]`, in order."""

    def __call__(self, envelope: Envelope) -> Envelope:
        """The event as it would be written today; the event itself if nothing is known of its version."""
        if not self._by_source:
            return envelope
        while (upcaster := self._by_source.get((envelope.event_type, envelope.schema_version))) is not None:
            envelope = _applied(upcaster, envelope)
        return envelope

    def leads_to(self, event_type: str, version: int) -> tuple[str, int]:
        """What a version of a type is read as in the end."""
        while (upcaster := self._by_source.get((event_type, version))) is not None:
            event_type, version = upcaster.to_type or event_type, upcaster.to_version
        return event_type, version

    def _transitions(self) -> list[list[str | int]]:
        return [
            [
                f"noetl.{one.event_type}",
                one.from_version,
                one.to_version,
                f"noetl.{one.to_type or one.event_type}",
                one.revision,
            ]
            for _, one in sorted(self._by_source.items())
        ]


def _applied(upcaster: Upcaster, envelope: Envelope) -> Envelope:
    changed = upcaster.change(envelope)
    for name in _FIXED:
        if getattr(changed, name) != getattr(envelope, name):
            raise Corrupt(f"the upcaster of {envelope.event_type} {envelope.schema_version} changes {name!r}")
    return replace(changed, event_type=upcaster.to_type or envelope.event_type, schema_version=upcaster.to_version)
