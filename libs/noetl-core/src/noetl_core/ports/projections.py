"""Queries over what has been projected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from noetl_core.ports.event_log import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionView:
    """An execution as its projection row shows it."""

    execution_id: int
    tenant_id: str
    organization_id: str
    path: str
    version: int
    catalog_id: str
    status: str
    last_event_type: str
    last_node_name: str
    start_time: datetime
    end_time: datetime | None = None
    error: Mapping[str, Any] | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    stream_version: int = 0
    parent_execution_id: str = ""
    upcasters: str = ""
    """Digest of the registry by which old events were read; empty if whoever folded it does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPage:
    """Some executions, newest first, without their state."""

    executions: tuple[ExecutionView, ...]
    next_page_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentCommand:
    """A claimed command whose lease is over: a candidate, checked again when it is abandoned."""

    execution_id: int
    command_id: str
    tenant_id: str
    organization_id: str
    step: str
    attempt: int
    worker_id: str
    aggregate_version: int
    lease_until: datetime
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentPage:
    """Some silent commands, and where to go on; an empty token means that there are no more."""

    commands: tuple[SilentCommand, ...]
    next_page_token: str = ""


class Projections(Protocol):
    """Answers queries; one row lookup where a key is given."""

    async def get_execution(
        self, scope: Scope | None, execution_id: int, *, min_version: int = 0, wait_seconds: float = 0.0
    ) -> ExecutionView:
        """One execution; waits until its row includes `min_version`; raises `NotFound` (execution.not_found)."""
        ...

    async def list_executions(
        self,
        scope: Scope,
        *,
        status: str = "",
        path: str = "",
        parent_execution_id: int | None = None,
        page_size: int = 50,
        page_token: str = "",
    ) -> ExecutionPage:
        """Executions of a tenant and organization, newest first."""
        ...

    async def silent_commands(self, *, limit: int = 100, page_token: str = "") -> SilentPage:
        """Claimed commands whose lease is over by the database's clock, longest silent first."""
        ...
