"""A completion that ends its execution hands nothing over."""

from __future__ import annotations

from noetl_core.executions.state import ExecutionStatus
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
