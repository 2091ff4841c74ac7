"""A result that cannot be stored is a failure of the task that made it, and its rules may have it run again."""

from __future__ import annotations

from typing import Any

import pytest
from noetl_core.errors import InvalidInput, NotFound
from noetl_core.payloads import PayloadRef
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE
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


def looped(rules: str, *, frame: str = "{max_rows: 5}", task_loop: bool = False) -> str:
    loop = f"{{in: [1, 2], iterator: n, spec: {{mode: parallel{'' if task_loop else f', frame: {frame}'}}}}}"
    step_loop, own = ("", f"loop: {loop}, ") if task_loop else (f"\n  loop: {loop}", "")
    tool = f'{{kind: python, {own}code: \'result = {{"heavy": a, "n": n}}\', input: {{a: "{{{{ _attempt }}}}", '
    return f"""
- step: make{step_loop}
  tool:
  - {tool}n: "{{{{ iter.n }}}}"}}, spec: {{policy: {{rules: [{rules}]}}}}}}"""


def told_of(came: Came, *event_types: str) -> list[str]:
    return [one.envelope.event_type for one in came.events if one.envelope.event_type in event_types]


FRAME_EVENTS = ("frame.dispatched", "frame.committed", "frame.failed")


async def test_rows_of_a_frame_go_back_to_their_task_as_its_rules_say() -> None:
    came = await came_of(looped(RETRY), refusals=2)

    assert [one["task_0"] for one in came.results["make"]["results"]] == [{"heavy": 3, "n": 1}, {"heavy": 3, "n": 2}]
    assert told_of(came, *FRAME_EVENTS) == ["frame.dispatched", "frame.committed"]


async def test_so_does_a_frame_that_is_processed_as_a_whole() -> None:
    came = await came_of(looped(RETRY, frame="{max_rows: 5, process: frame}"), refusals=1)

    assert came.results["make"]["stats"] == {"total": 2, "success": 2, "failed": 0}
    assert told_of(came, *FRAME_EVENTS) == ["frame.dispatched", "frame.committed"]


async def test_without_a_rule_the_frame_is_dispatched_again_with_the_same_rows() -> None:
    came = await came_of(looped(""), refusals=2)

    assert came.results["make"]["stats"] == {"total": 2, "success": 2, "failed": 0}
    assert told_of(came, *FRAME_EVENTS) == ["frame.dispatched", "frame.failed"] * 2 + [
        "frame.dispatched",
        "frame.committed",
    ]


async def test_a_frame_that_can_never_be_stored_comes_to_an_end() -> None:
    came = await came_of(looped(RETRY), refusals=1000)

    assert came.state is not None
    assert told_of(came, "frame.dispatched", "loop.done", "playbook.failed", "playbook.completed") == [
        *["frame.dispatched"] * 3,
        "loop.done",
        "playbook.failed",
    ]
    failed: list[Any] = [one.envelope.result for one in came.events if one.envelope.event_type == "frame.failed"]
    assert {one["context"]["error"]["code"] for one in failed} == {"REFERENCE_NOT_AVAILABLE"}


async def test_the_loop_of_a_task_runs_again_and_its_runs_are_counted() -> None:
    came = await came_of(looped(RETRY, task_loop=True), refusals=2)
    assert came.results["make"]["stats"] == {"total": 2, "success": 2, "failed": 0}

    came = await came_of(looped(RETRY, task_loop=True), refusals=3)
    assert came.results["seen"] == {"kind": "storage_access", "again": True}


class ForgetfulStore(InMemoryPayloadStore):
    """Does not find results that are heavy, a number of times."""

    def __init__(self, misses: int) -> None:
        super().__init__()
        self.misses = misses

    async def get(self, ref: PayloadRef) -> bytes:
        data = await super().get(ref)
        if b'"heavy":' in data and self.misses:
            self.misses -= 1
            raise NotFound("payload", ref.uri, code=REFERENCE_NOT_AVAILABLE)
        return data


@pytest.mark.parametrize(("misses", "code"), [(2, None), (3, "REFERENCE_NOT_AVAILABLE")])
async def test_what_cannot_be_read_is_read_again_as_the_rules_of_the_reader_say(misses: int, code: str | None) -> None:
    steps = f"""
- {{step: make, tool: {{kind: noop, result: {{heavy: 1}}}}, next: {{arcs: [{{step: read}}]}}}}
- step: read
  tool: {{kind: noop, result: "{{{{ make.heavy + 1 }}}}", spec: {{policy: {{rules: [{RETRY}]}}}}}}
"""
    case = Case(name="lost", rule="§9.4", document=HEAD + steps, expect={})
    came = await InMemoryRuntime(ForgetfulStore(misses)).run(case)

    ended = results_told(came)[1]
    assert (ended["context"].get("error") or {}).get("code") == code
    if code is None:
        assert came.results["read"] == 2
