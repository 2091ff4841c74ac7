"""Projections in which nothing is yet."""

from __future__ import annotations

from typing import Any

from noetl_core.errors import NotFound
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionPage, ExecutionView, SilentPage


class NoProjections:
    """A projector that has seen nothing yet: the log answers."""

    async def get_execution(self, scope: Scope | None, execution_id: int, **options: Any) -> ExecutionView:
        """It knows of none."""
        raise NotFound("execution", execution_id, code="execution.not_found")

    async def list_executions(self, scope: Scope, **options: Any) -> ExecutionPage:
        """Nobody should come here."""
        raise AssertionError("nobody lists here")

    async def silent_commands(self, *, limit: int = 100, page_token: str = "") -> SilentPage:
        """Nobody should come here."""
        raise AssertionError("nobody asks for silent commands")
