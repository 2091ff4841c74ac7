"""A result that cannot be stored is a failure of the task that made it, and its rules may have it run again."""

from __future__ import annotations

from typing import Any

from noetl_core.errors import InvalidInput
from noetl_core.payloads import PayloadRef
from noetl_testkit.conformance import Came, Case
from noetl_testkit.in_memory_runtime import InMemoryRuntime
from noetl_testkit.memory.payloads import InMemoryPayloadStore

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: lost, path: lost}\nworkflow:\n"
LOST = "{{ output.error.code == 'REFERENCE_NOT_AVAILABLE' }}"
RETRY = f'{{when: "{LOST}", then: {{do: retry, attempts: 3, delay: 0}}}}'
TAIL = """
  next: {arcs: [{step: seen, when: "{{ output.error.code == 'REFERENCE_NOT_AVAILABLE' }}"}]}
- {step: seen, tool: {kind: noop, result: {kind: "{{ make.error.kind }}", again: "{{ make.error.retryable }}"}}}
"""


class FullStore(InMemoryPayloadStore):
    """Has no room for results that are heavy, a number of times."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        if b'"heavy":' in data and self.refusals:
            self.refusals -= 1
            raise InvalidInput("there is no room")
        return await super().put(tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type)


async def came_of(step: str, *, refusals: int) -> Came:
    case = Case(name="lost", rule="§9.1", document=HEAD + step + TAIL, expect={})
    came = await InMemoryRuntime(FullStore(refusals)).run(case)
    assert not came.problems, came.problems
    return came


def single(rules: str) -> str:
    return f"""
- step: make
  tool: {{kind: noop, result: {{heavy: "{{{{ _attempt }}}}"}}, spec: {{policy: {{rules: [{rules}]}}}}}}"""


def results_told(came: Came) -> list[Any]:
    ends = ("call.done", "call.error")
    return [one.envelope.result for one in came.events if one.envelope.event_type in ends]


async def test_without_a_rule_the_step_fails_and_an_error_arc_takes_it() -> None:
    came = await came_of(single(""), refusals=1)

    assert came.results["seen"] == {"kind": "storage_access", "again": True}
    lost = results_told(came)[0]
    assert (lost["status"], lost["reference"]) == ("error", None)


async def test_a_rule_that_retries_has_the_producer_run_again_and_counts_all_runs() -> None:
    came = await came_of(single(RETRY), refusals=2)

    assert came.results == {"make": {"heavy": 3}}
    assert [one["status"] for one in results_told(came)] == ["ok"]  # what was lost is not told


async def test_when_the_attempts_are_used_up_the_failure_stands() -> None:
    came = await came_of(single(RETRY), refusals=3)

    assert came.results["seen"] == {"kind": "storage_access", "again": True}


async def test_a_pipeline_goes_back_to_the_task_that_made_the_result() -> None:
    pipeline = f"""
- step: make
  tool:
  - {{name: once, kind: python, code: 'result = {{"light": 1}}'}}
  - name: last
    kind: noop
    result: {{heavy: "{{{{ _attempt }}}}", before: "{{{{ once.light }}}}"}}
    spec: {{policy: {{rules: [{RETRY}]}}}}"""

    came = await came_of(pipeline, refusals=1)

    assert (came.results["make"]["heavy"], came.results["make"]["before"]) == (2, 1)


async def test_a_rule_may_jump_to_where_the_result_began() -> None:
    pipeline = f"""
- step: make
  tool:
  - name: count
    kind: python
    input: {{n: "{{{{ n | default(0) }}}}"}}
    code: 'result = {{"n": n + 1}}'
    set: {{ctx.n: "{{{{ output.n }}}}"}}
  - name: last
    kind: noop
    result: {{heavy: "{{{{ n }}}}"}}
    spec: {{policy: {{rules: [{{when: "{LOST}", then: {{do: jump, to: count}}}}]}}}}"""

    came = await came_of(pipeline, refusals=2)

    assert came.results["make"]["heavy"] == 3
