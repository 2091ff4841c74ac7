"""What a worker gets with a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.commands.state import Command
from noetl_core.executions.state import Execution
from noetl_core.fold import State
from noetl_core.ids import effect_key
from noetl_core.loops.state import Loop
from noetl_core.payloads import PayloadRef
from noetl_core.placement import Placement, placed
from noetl_core.ports.commands import CommandKey, GrantedCommand, LoopItem, Variables, Worker

from noetl_planner.application.streaming import chunk_of


def grant(state: State, command: Command, *, lease_seconds: float) -> GrantedCommand:
    """Everything that its worker needs to run a command."""
    execution = state.execution
    return GrantedCommand(
        key=CommandKey(execution_id=execution.execution_id, command_id=command.command_id),
        tenant_id=execution.tenant_id,
        organization_id=execution.organization_id,
        catalog_id=execution.catalog_id,
        step=command.step,
        activation=command.activation,
        attempt=command.attempt,
        lease_seconds=lease_seconds,
        idempotency_key=effect_key(
            execution_id=execution.execution_id,
            step=command.step,
            activation=command.activation,
            index=command.loop_index,
        ),
        issued_at=command.issued_at,
        workload=execution.workload,
        results=known_results(execution),
        variables=visible_variables(execution, _loop_of(execution, command)),
        cause_step=command.cause_step,
        item=item_of(execution, command),
        trace=command.trace or execution.trace,
        evaluation=command.evaluation,
        pool=command.pool,
        pipeline=command.pipeline,
        parked=command.parked,
        chunk=chunk_of(execution, command),
        streamed=command.streamed,
    )


def made_at(execution: Execution, step: str) -> str:
    """Where what led to a step was made, which is where most of what it reads is at hand; empty if nobody knows."""
    entered = execution.steps.get(step)
    cause = execution.steps.get(entered.cause_step) if entered else None
    return cause.made_at if cause else ""


def placement_of(state: State, command: Command, worker: Worker) -> Placement:
    """How near to what led to its step a worker would run a command."""
    source = made_at(state.execution, command.step)
    return placed(locator=worker.locator, locality=worker.locality, source=source)


def rank_of(state: State, command: Command, worker: Worker, *, by_distance: bool) -> int | None:
    """How early a worker that waits is given a command: 0 is at once, None never.

    Many commands at once do not go by distance: they are not to queue at the one node that has what led to them,
    while other nodes have nothing to do.
    """
    placement = placement_of(state, command, worker)
    if not placement.is_allowed:
        return None
    return placement.rank if by_distance else 0


def known_results(execution: Execution) -> Mapping[str, Mapping[str, Any]]:
    """The result of each step that has one."""
    return {name: step.result for name, step in execution.steps.items() if step.result is not None}


def item_of(execution: Execution, command: Command) -> LoopItem | None:
    """Which item it is; its value is there or, if the collection is stored, where to find it."""
    loop = _loop_of(execution, command)
    if loop is None or command.loop_index is None:
        return None
    index = command.loop_index
    return LoopItem(
        loop_id=loop.loop_id,
        index=index,
        total=loop.total,
        value=loop.items[index] if loop.collection is None else None,
        collection=loop.collection,
    )


def visible_variables(execution: Execution, loop: Loop | None) -> Variables:
    """The variables; items of a parallel loop do not see what the other items have set."""
    values, refs = dict(execution.variables), dict(execution.variable_refs)
    for name, before in loop.before.items() if loop else ():
        values.pop(name, None)
        refs.pop(name, None)
        if "value" in before:
            values[name] = before["value"]
        elif "ref" in before:
            refs[name] = before["ref"]
    return Variables(values=values, refs={name: PayloadRef.from_json(ref) for name, ref in refs.items()})


def _loop_of(execution: Execution, command: Command) -> Loop | None:
    loop = execution.loops.get(command.step)
    return loop if loop is not None and loop.is_open and loop.loop_id == command.loop_id else None
