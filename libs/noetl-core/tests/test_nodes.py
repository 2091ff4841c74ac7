"""Facts about the command of a pipeline are told under a node of its own, and are facts about its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

import pytest
from noetl_core.catalog import known_types, to_draft, typed
from noetl_core.events import Event
from noetl_core.fold import State, empty, fold
from noetl_core.nodes import OfCommand, node_of, step_of
from noetl_core.payloads import refer_to
from noetl_core.recorded import Recorded, as_if_recorded
from noetl_core.timestamps import parse_time
from noetl_core.values import replace
from noetl_testkit.pure_run import PureRun

NOON = parse_time("2026-01-01T12:00:00.000000Z")
STORED = refer_to(b"x", tenant_id="t", organization_id="o", media_type="application/json")
OF_COMMANDS = sorted(name for name, spec in known_types().items() if issubclass(spec.payload, OfCommand))
VALUES: dict[str, Any] = {"int": 1, "float": 1.0, "bool": True, "PayloadRef": STORED, "PayloadRef | None": STORED}


def fact_of(name: str, *, step: str, pipeline: bool | None) -> Any:
    payload = known_types()[name].payload
    needed = [one for one in fields(payload) if one.default is MISSING and one.default_factory is MISSING]
    values = {one.name: VALUES.get(str(one.type), None if "Mapping" in str(one.type) else "x") for one in needed}
    return payload(**{**values, "step": step, "pipeline": pipeline})


def recorded(content: object, version: int = 1) -> Recorded:
    return as_if_recorded(
        to_draft(content, idempotency_key=f"{version}"),
        tenant_id="t",
        organization_id="o",
        execution_id=1,
        stream_version=version,
        aggregate_version=version,
        time=NOON,
    )


def test_all_facts_about_commands_have_a_node() -> None:
    assert OF_COMMANDS == [
        "call.done", "call.error", "call.partial", "command.abandoned", "command.claimed", "command.completed",
        "command.failed", "command.heartbeat", "command.issued", "command.parked", "command.resumed", "command.started",
    ]  # fmt: skip
    assert {name for name in known_types() if name.startswith(("command.", "call."))} == set(OF_COMMANDS)


@pytest.mark.parametrize("step", ["load", "load:task_sequence", ":task_sequence", "ü load"])
@pytest.mark.parametrize("pipeline", [None, True])
@pytest.mark.parametrize("name", OF_COMMANDS)
def test_whatever_a_step_is_called_its_facts_are_read_as_they_were_told(
    name: str, pipeline: bool | None, step: str
) -> None:
    content = fact_of(name, step=step, pipeline=pipeline)

    envelope = recorded(content).envelope

    assert envelope.node_name == node_of(step, pipeline=pipeline) == step + (":task_sequence" if pipeline else "")
    assert step_of(envelope.node_name, envelope.meta) == step
    assert typed(envelope) == content


def test_who_asks_where_an_execution_stands_is_told_the_step() -> None:
    state = fold(empty(1), recorded(fact_of("command.started", step="load", pipeline=True)))

    assert state.last_node_name == "load"


WORKFLOW = """
workflow:
- {step: a, tool: [{kind: noop}, {kind: noop}], next: {arcs: [{step: l}]}}
- {step: l, loop: {in: [1, 2, 3], spec: {mode: parallel}}, tool: [{kind: noop}], next: {arcs: [{step: b}]}}
- {step: b, tool: {kind: noop}}
"""


def test_a_history_that_was_told_under_the_step_alone_comes_to_the_same_state() -> None:
    run = PureRun.of(WORKFLOW).to_the_end()
    before = [replace(event, pipeline=None) if isinstance(event, OfCommand) else event for event in run.events]
    assert before != run.events

    now, then = state_of(run.events), state_of(before)

    assert {one.pipeline for one in then.commands.values()} == {False}
    assert replace(now, commands={}) == replace(then, commands={})
    assert {key: replace(one, pipeline=False) for key, one in now.commands.items()} == then.commands


def state_of(events: Sequence[Event]) -> State:
    state = empty(1)
    for version, content in enumerate(events, start=1):
        state = fold(state, recorded(content, version))
    return state
