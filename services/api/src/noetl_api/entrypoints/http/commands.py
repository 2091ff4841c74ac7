"""Commands over HTTP, for workers that are no NoETL worker."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from noetl_core.ids import parse_id
from noetl_core.nodes import node_of
from noetl_core.ports.commands import GrantedCommand, Worker
from pydantic import BaseModel, ConfigDict, Field

from noetl_api.application.commands import Delivery, IssuedCommand
from noetl_api.entrypoints.http.dependencies import CallerOf, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api/commands", tags=["commands"])

EventId = Annotated[str, Path(description="Id of the event `command.issued`.")]


class CommandOut(BaseModel):
    """A command and where it stands."""

    event_id: str
    execution_id: str
    catalog_id: str
    command_id: str
    node_name: str = Field(description="As in its events; `<step>:task_sequence` for a pipeline.")
    step: str
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
            node_name=node_of(content.step, pipeline=content.pipeline),
            step=content.step,
            activation=content.activation,
            attempt=content.attempt,
            pool=content.pool,
            status=command.status,
            worker_id=(current.worker_id or None) if current else None,
            lease_until=current.lease_until if current else None,
            issued_at=current.issued_at if current else None,
            ended_at=current.ended_at if current else None,
        )


CommandName = Annotated[str, Path(description="Id of the event `command.issued`, or of the command itself.")]


class ClaimBody(BaseModel):
    """Who claims, or has claimed."""

    model_config = ConfigDict(extra="forbid")

    worker_id: str = Field(min_length=1, max_length=255)
    pool: str = "default"
    execution_id: str = Field(default="", description="Needed where the path has the command's own id.")

    @property
    def worker(self) -> Worker:
        return Worker(worker_id=self.worker_id, pool=self.pool)

    @property
    def execution(self) -> int | None:
        return parse_id(self.execution_id, what="execution_id") if self.execution_id else None


class CompleteBody(ClaimBody):
    """What came of a command."""

    result: dict[str, Any] = Field(
        description="`{status: ok|error, reference, parent_ref, context}`: data by reference, and scalars in `context`."
    )
    variables: dict[str, Any] = Field(default_factory=dict, description="Variables of the execution that it has set.")
    wants_next: bool = Field(default=False, description="Whether a command that follows is to be claimed at once.")


class HeartbeatOut(BaseModel):
    """The claim is good for another `lease_seconds`."""

    ok: bool = True


class GrantedOut(BaseModel):
    """Everything that is needed to run a command."""

    status: str = "claimed"
    execution_id: str
    command_id: str
    catalog_id: str
    node_name: str = Field(description="As in its events; `<step>:task_sequence` for a pipeline.")
    step: str
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
            node_name=node_of(command.step, pipeline=command.pipeline),
            step=command.step,
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


class CompletedOut(BaseModel):
    """Where it was recorded, and what the worker has claimed with it."""

    ok: bool = True
    stream_version: int
    next: GrantedOut | None


@router.get("/{event_id}")
async def get_command(event_id: EventId, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf) -> CommandOut:
    """The command that an event has issued."""
    found = await use_cases.issued_commands.get(caller, scope, parse_id(event_id, what="event_id"))
    return CommandOut.of(found)


@router.post("/{command}/claim")
async def claim(
    command: CommandName, body: ClaimBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> GrantedOut:
    """Take a command, for services; 409 if another worker has it. Safe to repeat by the same worker."""
    granted = await use_cases.issued_commands.claim(caller, scope, command, body.worker, execution_id=body.execution)
    return GrantedOut.of(granted)


@router.post("/{command}/heartbeat")
async def heartbeat(
    command: CommandName, body: ClaimBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> HeartbeatOut:
    """Keep a claim alive, for services; 409 if it does not count any more."""
    await use_cases.issued_commands.heartbeat(caller, scope, command, body.worker, execution_id=body.execution)
    return HeartbeatOut()


@router.post("/{command}/complete")
async def complete(
    command: CommandName, body: CompleteBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> CompletedOut:
    """Deliver the result of a claimed command, for services; 409 if it does not count any more. Safe to repeat."""
    delivery = Delivery(worker=body.worker, result=body.result, variables=body.variables, wants_next=body.wants_next)
    done = await use_cases.issued_commands.complete(caller, scope, command, delivery, execution_id=body.execution)
    return CompletedOut(stream_version=done.stream_version, next=GrantedOut.of(done.next) if done.next else None)
