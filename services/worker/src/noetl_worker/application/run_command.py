"""Runs one command: its tool, with what its templates speak of, and the result stored before it is told."""

from __future__ import annotations

from noetl_core.canonical import JsonObject
from noetl_core.errors import NoetlError, NotFound
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.selection import control_paths
from noetl_core.ports.commands import GrantedCommand
from noetl_core.timestamps import format_time
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks

from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.step_names import StepNames
from noetl_worker.application.tool_call import Tool, ToolCall


class RunCommand:
    """Whatever goes wrong with the user's part is an outcome; only trouble of our own is raised, and tried again."""

    def __init__(self, *, playbooks: PinnedPlaybooks, names: StepNames, tool: Tool, persist: PersistBeforeEmit) -> None:
        self._playbooks = playbooks
        self._names = names
        self._tool = tool
        self._persist = persist

    async def __call__(self, command: GrantedCommand) -> JsonObject:
        """The `result` of the event that closes the command."""
        place = ResultPlace(
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            execution_id=command.key.execution_id,
            step=command.step,
        )
        playbook = await self._playbooks.get(
            tenant_id=command.tenant_id, organization_id=command.organization_id, catalog_id=command.catalog_id
        )
        outcome = await self._outcome(command, playbook)
        stored = await self._persist(
            place,
            outcome,
            control_paths=control_paths(playbook, command.step),
            parent_ref_id=_parent_ref_id(command),
        )
        return stored.to_json()

    async def _outcome(self, command: GrantedCommand, playbook: Playbook) -> Outcome:
        step = playbook.steps[command.step]
        try:
            names = await self._names(command, step)
        except NotFound as exc:
            return Outcome.failed(kind=ErrorKind.STORAGE_ACCESS, code=exc.code, message=exc.message, retryable=True)
        return await self._tool.run(
            ToolCall(
                tenant_id=command.tenant_id,
                organization_id=command.organization_id,
                execution_id=command.key.execution_id,
                step=command.step,
                kind=step.tool.kind,
                input=step.merged_input(),
                config=step.tool.config,
                names=names,
                now=format_time(command.issued_at),
                timeout_seconds=step.tool.timeout_seconds,
                attempt=command.attempt,
            )
        )


def failed_result(error: NoetlError) -> JsonObject:
    """The result of a command that could not even be run; there are no bytes to refer to."""
    outcome = Outcome.failed(
        kind=ErrorKind.UNKNOWN, code=error.code, message=error.message[:1000], retryable=error.retryable
    )
    described = outcome.error.to_json() if outcome.error else {}
    return {"status": "error", "reference": None, "parent_ref": None, "context": {"error": described}}


def _parent_ref_id(command: GrantedCommand) -> str | None:
    reference = (command.results.get(command.cause_step) or {}).get("reference") or {}
    ref_id = reference.get("ref_id")
    return ref_id if isinstance(ref_id, str) else None
