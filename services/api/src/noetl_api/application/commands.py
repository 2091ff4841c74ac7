"""Commands for workers that speak HTTP: shown by the event that issued them, claimed through the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl_core.commands.events import CommandIssued
from noetl_core.commands.state import Command
from noetl_core.envelope import StoredEvent, check_result_shape
from noetl_core.errors import Corrupt, InvalidInput, LeaseLost, NotFound, Rejected, Unavailable
from noetl_core.ids import parse_id
from noetl_core.ports.commands import (
    UNANSWERED,
    CommandKey,
    Commands,
    Completion,
    GrantedCommand,
    Variables,
    Worker,
)
from noetl_core.ports.event_finder import EventFinder
from noetl_core.ports.event_log import Scope
from noetl_core.recorded import record
from noetl_core.state_json import read_state
from noetl_servicekit.callers import Caller, Role

from noetl_api.application.query_executions import QueryExecutions
from noetl_api.application.scopes import visible_scope

_NOT_FOUND = "command.not_found"


class ClaimRefused(Rejected):
    """Somebody else holds the command, or it is over."""

    code = "command.held"

    def __init__(self, *, command_id: str, reason: str) -> None:
        super().__init__(f"command {command_id} was not granted: {reason}", reason=reason)
        self.code = reason  # type: ignore[misc]  # an instance may be more precise than its class


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCommand:
    """A command, as the event that issued it and the state of its execution tell it."""

    event_id: int
    execution_id: int
    catalog_id: str
    content: CommandIssued
    current: Command | None
    """None when it was closed so long ago that its execution remembers it no more."""

    @property
    def status(self) -> str:
        """Where it stands."""
        return "closed" if self.current is None else self.current.status.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The result of a command as its event carries it, and what the call has set."""

    worker: Worker
    result: Mapping[str, Any]
    variables: Mapping[str, Any] = field(default_factory=dict)
    wants_next: bool = False


class IssuedCommands:
    """Who knows an event's id may ask; whether a claim counts is for the planner to say."""

    def __init__(self, *, events: EventFinder, executions: QueryExecutions, planner: Commands | None) -> None:
        self._events = events
        self._executions = executions
        self._planner = planner

    async def get(self, caller: Caller, scope: Scope | None, event_id: int) -> IssuedCommand:
        """The command that an event has issued."""
        stored, content = await self._issued(caller, scope, event_id)
        envelope = stored.envelope()
        view = await self._executions.get(caller, scope, envelope.execution_id, min_version=stored.stream_version)
        try:
            current = read_state(view.state).commands.get(content.command_id)
        except Corrupt:  # a state of another release: what it says cannot be known here
            current = None
        return IssuedCommand(
            event_id=event_id,
            execution_id=envelope.execution_id,
            catalog_id=view.catalog_id,
            content=content,
            current=current,
        )

    async def claim(
        self, caller: Caller, scope: Scope | None, name: str, worker: Worker, *, execution_id: int | None
    ) -> GrantedCommand:
        """Claim by the id of the event, or by the command's own id and its execution; raises `ClaimRefused`."""
        planner = self._planner_for(caller, worker)
        key = await self._key(caller, scope, name, execution_id)
        (outcome,) = await planner.claim(worker, [key])
        if outcome.command is not None:
            return outcome.command
        if outcome.refusal == UNANSWERED:
            raise Unavailable("nobody plans this execution at the moment")
        if outcome.refusal == _NOT_FOUND:
            raise NotFound("command", key.command_id, code=_NOT_FOUND)
        raise ClaimRefused(command_id=key.command_id, reason=outcome.refusal)

    async def heartbeat(
        self, caller: Caller, scope: Scope | None, name: str, worker: Worker, *, execution_id: int | None
    ) -> None:
        """Keep a claim alive; raises `ClaimRefused` if it does not count any more."""
        planner = self._planner_for(caller, worker)
        key = await self._key(caller, scope, name, execution_id)
        beats = await planner.heartbeat(worker, [key])
        if beats.unanswered:
            raise Unavailable("nobody plans this execution at the moment")
        if beats.lost:
            raise ClaimRefused(command_id=key.command_id, reason=LeaseLost.code)

    async def complete(
        self, caller: Caller, scope: Scope | None, name: str, delivery: Delivery, *, execution_id: int | None
    ) -> Completion:
        """Take the result of a command from whoever claimed it; safe to repeat, `LeaseLost` if it does not count."""
        planner = self._planner_for(caller, delivery.worker)
        check_result_shape(delivery.result)
        key = await self._key(caller, scope, name, execution_id)
        return await planner.complete(
            delivery.worker,
            key,
            delivery.result,
            wants_next=delivery.wants_next,
            variables=Variables(values=delivery.variables),
        )

    def _planner_for(self, caller: Caller, worker: Worker) -> Commands:
        caller.require(Role.SERVICE)
        if not worker.worker_id:
            raise InvalidInput("a worker names its worker_id")
        if self._planner is None:
            raise Unavailable("this api knows no planner (NOETL_PLANNER_ADDRESS), so that it grants no commands")
        return self._planner

    async def _key(self, caller: Caller, scope: Scope | None, name: str, execution_id: int | None) -> CommandKey:
        if execution_id is not None:
            await self._executions.get(caller, scope, execution_id)  # raises NotFound unless the caller sees it
            return CommandKey(execution_id=execution_id, command_id=name)
        stored, content = await self._issued(caller, scope, parse_id(name, what="event_id"))
        return CommandKey(execution_id=stored.envelope().execution_id, command_id=content.command_id)

    async def _issued(self, caller: Caller, scope: Scope | None, event_id: int) -> tuple[StoredEvent, CommandIssued]:
        caller.require(Role.READER)
        stored = await self._events.find(visible_scope(caller, scope), event_id)
        content = record(stored).content
        if not isinstance(content, CommandIssued):
            raise NotFound("command", event_id, code=_NOT_FOUND)
        return stored, content
