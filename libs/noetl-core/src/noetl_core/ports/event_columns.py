"""What a log keeps beside the bytes of its events, for lookups: it proves nothing, and must say the same."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from noetl_core.evidence.findings import Finding
from noetl_core.ports.event_log import Scope

Place = tuple[int, int]
"""An execution, and a version of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPage:
    """What differs among some events, by execution; and behind which event to go on, if there are more."""

    findings: tuple[tuple[int, Finding], ...]
    following: Place | None


class EventColumns(Protocol):
    """Compares columns with bytes where both are."""

    async def check_columns(
        self, scope: Scope | None, execution_ids: Collection[int], *, after: Place | None = None
    ) -> ColumnPage:
        """One page of the events of these executions; those of others are left out."""
        ...
