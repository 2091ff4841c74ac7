"""Turns that lead to very much, or to the end: one append stays one that the log takes."""

from __future__ import annotations

from noetl_core.executions.state import ExecutionStatus
from noetl_core.ports.steering import SteerAction
from noetl_testkit.planning import WORKER, Planning, ok

ONE_BRANCH_ENDS_ALL = """
workflow:
- {step: a, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: b}, {step: c}]}}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}, loop: {in: "{{ 5 }}"}, spec: {policy: {failure: {mode: fail_fast}}}}
"""


async def test_a_worker_is_not_handed_what_was_issued_before_the_execution_ended_in_the_same_decision() -> None:
    planning = await Planning().start(ONE_BRANCH_ENDS_ALL)
    appends: list[int] = []
    planning.log.on_commit.append(lambda events: appends.append(len(events)))
    command = await planning.claim("a")

    completion = await planning.actors.complete(WORKER, command.key, ok(), wants_next=True)

    assert completion.next is None
    assert planning.state.execution.status is ExecutionStatus.FAILED
    assert planning.types().index("playbook.failed") == len(planning.types()) - 1
    assert len(appends) == 2, "one append for the claim, one for the result with all that follows"
    await planning.actors.stop()


BRANCHES = 26


def wide() -> str:
    """Branches that may lead to a loop of 200 items each at the same time: more than one append can have."""
    arcs = ", ".join(f"{{step: w{number}}}" for number in range(BRANCHES))
    steps = [f"- {{step: a, tool: {{kind: noop}}, next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}}}"]
    for number in range(BRANCHES):
        always = "{{ output.status != 'x' }}"
        arc = f'next: {{arcs: [{{step: l{number}, when: "{always}"}}]}}'
        steps.append(f"- {{step: w{number}, tool: {{kind: noop}}, spec: {{timeout: 10}}, {arc}}}")
        loop = 'loop: {in: "{{ items }}", spec: {mode: parallel, max_in_flight: 200}}'
        steps.append(f"- {{step: l{number}, tool: {{kind: noop}}, {loop}}}")
    return "\n".join(["workflow:", *steps])


async def test_many_deadlines_at_once_pass_in_several_turns() -> None:
    planning = await Planning().start(wide(), items=list(range(200)))
    await planning.run("a")
    planning.pass_time(20)

    passed = 0
    while (now := await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)).passed:
        passed += now.passed

    assert passed == BRANCHES
    await planning.actors.stop()


async def test_what_was_held_back_begins_no_more_items_than_one_decision_may() -> None:
    planning = await Planning().start(wide(), items=list(range(200)))
    await planning.run("a")
    commands = [await planning.claim(f"w{number}") for number in range(BRANCHES)]
    await planning.actors.steer(planning.execution_id, SteerAction.PAUSE, by="ada", reason="")
    for command in commands:
        await planning.complete(command)

    resumed = await planning.actors.steer(planning.execution_id, SteerAction.RESUME, by="ada", reason="")

    assert resumed.status == "RUNNING"
    assert planning.types().count("loop.started") == BRANCHES
    assert planning.types().count("loop.item") == 200
    await planning.actors.stop()
