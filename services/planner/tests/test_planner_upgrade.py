"""Planners meet commands that the release before has issued: pipelines had no node of their own then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from noetl_core import catalog
from noetl_core.envelope import Draft
from noetl_core.executions.state import ExecutionStatus
from noetl_core.nodes import OfCommand
from noetl_core.replay.history import Replay
from noetl_core.surfaces.shapes import Surface
from noetl_core.values import replace
from noetl_testkit.planning import LEASE_SECONDS, WORKER, Planning, ok

TWO_PIPELINES = """
workflow:
- {step: a, tool: [{kind: noop}, {kind: noop}], next: {arcs: [{step: b}]}}
- {step: b, tool: [{kind: noop}]}
"""
A_LOOP = "workflow: [{step: a, loop: {in: [1, 2, 3]}, tool: [{kind: noop}]}]"


@contextmanager
def release_before(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """What planners append is told as it was before pipelines had nodes."""

    def under_the_step(content: object, **envelope: Any) -> Draft:
        told = replace(content, pipeline=None) if isinstance(content, OfCommand) else content
        return catalog.to_draft(told, **envelope)

    with patch.context() as patched:
        for module in ("turn", "abandoning", "parking", "streaming"):
            patched.setattr(f"noetl_planner.application.{module}.to_draft", under_the_step)
        yield


def nodes(planning: Planning, *types: str) -> list[str]:
    return [one.envelope.node_name for one in planning.events() if one.envelope.event_type in types]


async def test_what_was_issued_under_the_step_ends_under_it_and_what_follows_has_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = Planning()
    with release_before(monkeypatch):
        await planning.start(TWO_PIPELINES)
        command = await planning.claim("a")
    await planning.replace_planner()

    await planning.actors.heartbeat(WORKER, [command.key])
    completion = await planning.actors.complete(WORKER, command.key, ok(), wants_next=False)
    repeated = await planning.actors.complete(WORKER, command.key, ok(), wants_next=False)
    await planning.run("b")

    assert repeated == completion
    assert set(nodes(planning, "command.heartbeat")) == {"a"}
    assert nodes(planning, "command.issued", "call.done", "command.completed") == [
        "a", "a", "a", "b:task_sequence", "b:task_sequence", "b:task_sequence",
    ]  # fmt: skip
    assert planning.state.execution.status is ExecutionStatus.COMPLETED
    await planning.actors.stop()


async def test_a_result_that_the_release_before_has_told_is_answered_again_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planning = Planning()
    with release_before(monkeypatch):
        await planning.start(TWO_PIPELINES)
        command = await planning.claim("a")
        told = await planning.actors.complete(WORKER, command.key, ok(), wants_next=True)
    await planning.replace_planner()

    again = await planning.actors.complete(WORKER, command.key, ok(), wants_next=True)

    assert told.next is not None and again.next is not None
    assert (again.next.key, again.next.pipeline) == (told.next.key, False)
    await planning.complete(again.next)
    assert nodes(planning, "call.done") == ["a", "b"]
    await planning.actors.stop()


async def test_another_attempt_has_the_node_that_the_first_had_not(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = Planning()
    with release_before(monkeypatch):
        await planning.start(TWO_PIPELINES)
        command = await planning.claim("a")
    await planning.replace_planner()
    known = planning.state.commands[command.key.command_id]
    assert known.lease_until is not None
    planning.pass_time(LEASE_SECONDS + 1)

    await planning.actors.abandon(
        command.key,
        expected_aggregate_version=known.aggregate_version,
        lease_until=known.lease_until,
        reclaimer="r",
    )
    await planning.run("a")

    assert nodes(planning, "command.abandoned") == ["a"]
    assert nodes(planning, "command.issued") == ["a", "a:task_sequence", "b:task_sequence"]
    assert nodes(planning, "call.done") == ["a:task_sequence"]
    await planning.actors.stop()


async def test_a_loop_goes_on_and_its_rows_are_the_same_whoever_told_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = Planning()
    with release_before(monkeypatch):
        await planning.start(A_LOOP)
        await planning.run("a")
    await planning.replace_planner()

    await planning.run_all("a")

    assert nodes(planning, "call.done") == ["a", "a", "a:task_sequence"]
    assert nodes(planning, "loop.done", "loop.item") == ["a"] * 4
    replay = Replay(planning.execution_id)
    replay.take(planning.log.streams[planning.execution_id].events)
    assert {row["step"] for row in replay.result().rows[Surface.COMMANDS].values()} == {"a"}
    assert planning.state.execution.status is ExecutionStatus.COMPLETED
    await planning.actors.stop()
