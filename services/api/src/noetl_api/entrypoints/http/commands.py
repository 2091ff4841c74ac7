"""Commands over HTTP, for workers that are no NoETL worker."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from noetl_core.ids import parse_id
from noetl_core.ports.commands import GrantedCommand, Worker
from pydantic import BaseModel, ConfigDict, Field

from noetl_api.application.commands import IssuedCommand
from noetl_api.entrypoints.http.dependencies import CallerOf, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api/commands", tags=["commands"])

EventId = Annotated[str, Path(description="Id of the event `command.issued`.")]


class CommandOut(BaseModel):
    """A command and where it stands."""

    event_id: str
    execution_id: str
    catalog_id: str
    command_id: str
    node_name: str
    activation: int
    attempt: int
    pool: str
    status: str = Field(description="issued, claimed, started, completed, failed, abandoned or closed.")
    worker_id: str | None
    lease_until: datetime | None
    issued_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, command: IssuedCommand) -> CommandOut:
        current, content = command.current, command.content
        return cls(
            event_id=str(command.event_id),
            execution_id=str(command.execution_id),
            catalog_id=command.catalog_id,
            command_id=content.command_id,
            node_name=content.step,
            activation=content.activation,
            attempt=content.attempt,
            pool=content.pool,
            status=command.status,
            worker_id=(current.worker_id or None) if current else None,
            lease_until=current.lease_until if current else None,
            issued_at=current.issued_at if current else None,
            ended_at=current.ended_at if current else None,
        )


class ClaimBody(BaseModel):
    """Who claims."""

    model_config = ConfigDict(extra="forbid")

    worker_id: str = Field(min_length=1, max_length=255)
    pool: str = "default"
    execution_id: str = Field(default="", description="Needed where the path has the command's own id.")


class GrantedOut(BaseModel):
    """Everything that is needed to run a command."""

    status: str = "claimed"
    execution_id: str
    command_id: str
    catalog_id: str
    node_name: str
    activation: int
    attempt: int
    lease_seconds: float
    idempotency_key: str
    issued_at: datetime
    workload: dict[str, Any] | None
    variables: dict[str, Any]
    variable_refs: dict[str, Any]
    results: dict[str, Any]

    @classmethod
    def of(cls, command: GrantedCommand) -> GrantedOut:
        return cls(
            execution_id=str(command.key.execution_id),
            command_id=command.key.command_id,
            catalog_id=command.catalog_id,
            node_name=command.step,
            activation=command.activation,
            attempt=command.attempt,
            lease_seconds=command.lease_seconds,
            idempotency_key=command.idempotency_key,
            issued_at=command.issued_at,
            workload=command.workload.to_json() if command.workload else None,
            variables=dict(command.variables.values),
            variable_refs={name: ref.to_json() for name, ref in command.variables.refs.items()},
            results={step: dict(result) for step, result in command.results.items()},
        )


@router.get("/{event_id}")
async def get_command(event_id: EventId, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf) -> CommandOut:
    """The command that an event has issued."""
    found = await use_cases.issued_commands.get(caller, scope, parse_id(event_id, what="event_id"))
    return CommandOut.of(found)


@router.post("/{command}/claim")
async def claim(
    command: Annotated[str, Path(description="Id of the event `command.issued`, or of the command itself.")],
    body: ClaimBody,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
) -> GrantedOut:
    """Take a command, for services; 409 if another worker has it. Safe to repeat by the same worker."""
    granted = await use_cases.issued_commands.claim(
        caller,
        scope,
        command,
        Worker(worker_id=body.worker_id, pool=body.pool),
        execution_id=parse_id(body.execution_id, what="execution_id") if body.execution_id else None,
    )
    return GrantedOut.of(granted)
