"""Calls of other playbooks: starts the child, and makes of its end what the call was for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.children.state import TIMED_OUT, StartingCall
from noetl_core.errors import InvalidInput, KeyTaken, NoetlError, NotFound, PlaybookInvalid, TooDeep
from noetl_core.executions.amending import with_failure
from noetl_core.executions.state import ExecutionStatus
from noetl_core.ids import parse_id
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.ports.commands import GrantedCommand
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionView
from noetl_servicekit.loop_results import LoopResults, is_loop_reference
from noetl_servicekit.stored_values import StoredValues

from noetl_worker.application.known_secrets import secrets_in_names
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.result_refs import result_ref
from noetl_worker.application.tool_call import ToolCall

Answer = TypeVar("Answer")

RETRY_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0)
DEFAULT_TIMEOUT_SECONDS = 300.0


class StartedChild(Protocol):
    """A child that exists."""

    @property
    def execution_id(self) -> int:
        """Its id."""
        ...

    @property
    def path(self) -> str:
        """Its playbook."""
        ...


class Executions(Protocol):
    """What the worker asks of api about executions."""

    async def execute(
        self,
        scope: Scope | None,
        *,
        path: str = "",
        version: int = 0,
        payload: Mapping[str, Any] | None = None,
        parent_execution_id: int | None = None,
        parent_call: StartingCall | None = None,
    ) -> StartedChild:
        """Start a playbook; every start of one call is the same child."""
        ...

    async def get(self, scope: Scope | None, execution_id: int, *, min_version: int = 0) -> ExecutionView:
        """One execution, as of its last event."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a call asks for, rendered; without a step to return it does not wait."""

    path: str
    version: int
    payload: JsonObject
    return_step: str | None
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A child whose end the call waits for."""

    call_id: str
    child_execution_id: str
    path: str
    return_step: str
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


class ChildCalls:
    """Trouble around a call is not its outcome: it is tried again for as long as the command is ours."""

    def __init__(
        self,
        executions: Executions,
        values: StoredValues,
        *,
        loops: LoopResults | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._executions = executions
        self._values = values
        self._loops = loops
        self._sleep = sleep

    async def start(self, command: GrantedCommand, asked: Asked, *, call_id: str) -> Outcome | Waiting:
        """Start the child, or find the one that this call has started before."""
        starting = StartingCall(
            call_id=call_id,
            command_id=command.key.command_id,
            step=command.step,
            pool=command.pool,
            pipeline=command.pipeline,
            waits=asked.return_step is not None,
        )
        try:
            child = await self._patiently(
                lambda: self._executions.execute(
                    _scope(command),
                    path=asked.path,
                    version=asked.version,
                    payload=asked.payload,
                    parent_execution_id=command.key.execution_id,
                    parent_call=starting,
                )
            )
        except (NotFound, InvalidInput, TooDeep, KeyTaken) as refusal:
            return _refused(refusal, asked.path)
        child_id = str(child.execution_id)
        if asked.return_step is None:
            started: JsonObject = {"status": "started", "execution_id": child_id, "path": child.path, "async": True}
            return Outcome(data=started)
        return Waiting(
            call_id=call_id,
            child_execution_id=child_id,
            path=child.path,
            return_step=asked.return_step,
            timeout_seconds=asked.timeout_seconds,
        )

    async def outcome(self, command: GrantedCommand, waiting: Waiting, *, status: str) -> Outcome:
        """What the child's end means for the call; that it failed or was cancelled is data."""
        if status == TIMED_OUT:
            message = f"execution {waiting.child_execution_id} of {waiting.path!r} had not ended in time, and goes on"
            return Outcome.failed(kind=ErrorKind.TIMEOUT, code="PLAYBOOK_TIMEOUT", message=message)
        child_id = parse_id(waiting.child_execution_id)
        view = await self._patiently(lambda: self._executions.get(_scope(command), child_id))
        try:
            result = await self._patiently(lambda: self._result(view, waiting.return_step))
        except NotFound as exc:
            return Outcome.failed(kind=ErrorKind.STORAGE_ACCESS, code=exc.code, message=exc.message, retryable=True)
        fields: JsonObject = result if isinstance(result, dict) else {} if result is None else {"data": result}
        return Outcome(
            data={
                "status": view.status.lower(),
                **fields,
                "execution_id": waiting.child_execution_id,
                "path": waiting.path,
                "completed": view.status == ExecutionStatus.COMPLETED,
                "failed": view.status == ExecutionStatus.FAILED,
            }
        )

    async def _result(self, view: ExecutionView, step: str) -> JsonValue:
        """What the step has stored; nothing if it never ran."""
        told = ((view.state.get("steps") or {}).get(step) or {}).get("result") or {}
        return cast("JsonValue", with_failure(await self._stored(view, told), told))

    async def _stored(self, view: ExecutionView, told: Mapping[str, Any]) -> JsonValue:
        reference = told.get("reference")
        if not reference:
            return None
        if is_loop_reference(reference) and self._loops is not None:
            scope = Scope(tenant_id=view.tenant_id, organization_id=view.organization_id)
            return await self._loops(scope, view.execution_id, told)
        return await self._values.get(result_ref(reference))

    async def _patiently(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        tries = 0
        while True:
            try:
                return await ask()
            except NoetlError as exc:
                if not exc.retryable:
                    raise
                await self._sleep(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
                tries += 1


def read_call(call: ToolCall) -> Asked | Outcome:
    """What the call asks for, or why it cannot be asked."""
    try:
        return _asked(call.timed())
    except TemplateFailed as exc:
        return Outcome.failed(kind=ErrorKind.TRANSFORM, code="TEMPLATE_ERROR", message=exc.message)
    except InvalidInput as exc:
        return Outcome.failed(kind=ErrorKind.CLIENT_ERROR, code=exc.code, message=exc.message)


def _asked(call: ToolCall) -> Asked:
    path = call.render(call.config.get("path"))
    if not isinstance(path, str) or not path:
        raise InvalidInput(f"the path of a playbook is text, not {path!r:.100}")
    version = call.render(call.config.get("version") or 0)
    if isinstance(version, str) and version.isdecimal():
        version = int(version)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise InvalidInput(f"the version of a playbook is a whole number, not {version!r:.100}")
    payload = call.render(call.config.get("payload"))
    if payload is not None and not isinstance(payload, dict):
        raise InvalidInput(f"the payload of a playbook is a map, not {type(payload).__name__}")
    given: JsonValue = {**call.rendered_input(), **(payload or {})}
    # Variables are stored, and no secret is: a child opens its own keychain.
    hidden = secrets_in_names(call.visible).hide_in_data(given, whole=True)
    step = call.render(call.config.get("return_step"))
    return Asked(
        path=path,
        version=version,
        payload=hidden if isinstance(hidden, dict) else {},
        return_step=None if step is None else str(step),
        timeout_seconds=call.timeout_seconds or DEFAULT_TIMEOUT_SECONDS,
    )


def _refused(refusal: NoetlError, path: str) -> Outcome:
    if isinstance(refusal, NotFound):
        message = f"the catalog has no playbook {path!r}: {refusal.message}"
        return Outcome.failed(kind=ErrorKind.NOT_FOUND, code="PLAYBOOK_NOT_FOUND", message=message)
    if isinstance(refusal, TooDeep):
        return Outcome.failed(kind=ErrorKind.CLIENT_ERROR, code="PLAYBOOK_DEPTH", message=refusal.message)
    kind = ErrorKind.SCHEMA if isinstance(refusal, PlaybookInvalid) else ErrorKind.CLIENT_ERROR
    return Outcome.failed(kind=kind, code=refusal.code, message=refusal.message)


def _scope(command: GrantedCommand) -> Scope:
    return Scope(tenant_id=command.tenant_id, organization_id=command.organization_id)
