"""Asks the log where results came from."""

from typing import Protocol

from noetl_core.lineage import Trace, TracedResult
from noetl_core.ports.event_log import Scope

MAX_TRACE = 1000
"""Results of one answer; a chain goes back by versions, so it always ends."""


class Lineage(Protocol):
    """Reads the log, and nothing else: projections need not be there."""

    async def trace(self, scope: Scope | None, execution_id: int, step: str, *, at_version: int = 0) -> Trace:
        """The chain of the last result of a step, up to a version if one is named; no scope means any tenant's.

        Raises `NotFound` when there is no such execution, and answers nothing when the step has no result.
        """
        ...

    async def find(self, scope: Scope | None, execution_id: int, ref_id: str) -> TracedResult | None:
        """The last result that is referred to so."""
        ...
