"""Executions in which nothing has happened for a while: candidates for those that can never go on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietExecution:
    """An execution that has not ended, and its last event."""

    execution_id: int
    tenant_id: str
    organization_id: str
    path: str
    quiet_since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietPage:
    """Some quiet executions, and where to go on; an empty token means that there are no more."""

    executions: tuple[QuietExecution, ...]
    next_page_token: str = ""


class QuietExecutions(Protocol):
    """Lists candidates by what has been projected."""

    async def quiet_executions(self, *, quiet_seconds: float, limit: int = 100, page_token: str = "") -> QuietPage:
        """Executions without an event for so long by the database's clock, oldest first."""
        ...
