"""Pipelines: what rules make of outcomes, what later tasks see, and what the step's result is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from noetl_core.playbook.model import Step
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_core.ports.workers import WaitingRetry
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.pipeline import Pipeline
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.application.waiting_retries import WaitingRetries

Answer = Callable[[ToolCall, int], Outcome]


class Scripted:
    """A tool whose outcomes the test decides; it remembers the rendered input of each call."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.inputs: list[dict[str, Any]] = []

    async def run(self, call: ToolCall) -> Outcome:
        self.inputs.append(call.rendered_input())
        return self._answer(call, len(self.inputs))


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def step_of(yaml: str) -> Step:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n- step: s\n"
    playbook, _ = parse_playbook(head + yaml, supported=EVERYTHING)
    return playbook.steps["s"]


def failure(code: str = "TIMEOUT", kind: ErrorKind = ErrorKind.TIMEOUT) -> Outcome:
    return Outcome.failed(kind=kind, code=code, message="no")


async def run(
    yaml: str, answer: Answer, *, told: list[tuple[WaitingRetry, ...]] | None = None, **names: Any
) -> tuple[PipelineEnd, Scripted, list[float]]:
    slept: list[float] = []
    retries = WaitingRetries(now=lambda: NOON)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if told is not None:
            told.append(retries.told())

    command = GrantedCommand(
        key=CommandKey(execution_id=1, command_id="c"),
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        step="s",
        activation=1,
        attempt=1,
        lease_seconds=45,
        idempotency_key="k",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    tool = Scripted(answer)
    visible: Mapping[str, object] = {"ctx": names, **names}
    pipeline = Pipeline(tool, sleep=sleep, chance=lambda: 0.0, max_task_runs=50, retries=retries)
    end = await pipeline(command, step_of(yaml), visible)
    assert isinstance(end, PipelineEnd)
    assert retries.told() == ()
    return end, tool, slept


TWO = """
  tool:
  - {name: first, kind: noop, input: {x: 1}}
  - {name: second, kind: noop, input: {seen: "{{ first.n }}", previous: "{{ _prev.n }}", out: "{{ output.data.n }}"}}
"""


async def test_later_tasks_see_earlier_ones_and_the_result_has_labels() -> None:
    end, tool, _ = await run(TWO, lambda call, n: Outcome(data={"n": n}))

    assert tool.inputs[1] == {"seen": 1, "previous": 1, "out": 1}
    assert end.outcome.data == {
        "n": 2,
        "first": {"n": 1},
        "second": {"n": 2},
        "results": {"first": {"n": 1}, "second": {"n": 2}},
        "_prev": {"n": 2},
    }


async def test_a_single_tool_has_a_plain_result() -> None:
    end, _, _ = await run("  tool: {kind: noop}\n", lambda call, n: Outcome(data=7))

    assert end.outcome.data == 7


async def test_without_rules_an_error_ends_the_pipeline() -> None:
    end, tool, _ = await run(TWO, lambda call, n: failure())

    assert len(tool.inputs) == 1
    assert end.outcome.error is not None
    assert end.outcome.error.code == "TIMEOUT"


RETRYING = """
  tool:
    kind: noop
    spec:
      policy:
        rules:
        - when: "{{ output.error.retryable }}"
          then: {do: retry, attempts: 4, delay: 0.5, backoff: exponential}
"""


async def test_retry_counts_all_runs_and_backs_off() -> None:
    end, tool, slept = await run(RETRYING, lambda call, n: failure() if n < 3 else Outcome(data="ok"))

    assert (len(tool.inputs), slept) == (3, [0.5, 1.0])
    assert end.outcome.data == "ok"
    assert end.outcome.meta.attempt == 3


async def test_who_asks_meanwhile_learns_when_it_is_tried_again() -> None:
    told: list[tuple[WaitingRetry, ...]] = []
    await run(RETRYING, lambda call, n: failure() if n < 3 else Outcome(data="ok"), told=told)

    assert [(one.command_id, one.attempt, one.attempts) for (one,) in told] == [("c", 2, 4), ("c", 3, 4)]
    assert [one.next_at - NOON for (one,) in told] == [timedelta(seconds=0.5), timedelta(seconds=1)]


async def test_retry_gives_up_with_the_last_error() -> None:
    end, tool, _ = await run(RETRYING, lambda call, n: failure(code=f"E{n}"))

    assert len(tool.inputs) == 4
    assert end.outcome.error is not None
    assert end.outcome.error.code == "E4"


async def test_continue_after_an_error_makes_it_data() -> None:
    yaml = """
  tool:
    kind: noop
    spec: {policy: {rules: [{else: {then: {do: continue}}}]}}
"""
    end, _, _ = await run(yaml, lambda call, n: failure())

    assert end.outcome.error is None
    assert isinstance(end.outcome.data, dict)
    assert end.outcome.data["status"] == "error"


async def test_fail_without_an_error_is_a_policy_failure() -> None:
    yaml = """
  tool:
    kind: noop
    spec: {policy: {rules: [{when: "{{ output.data.bad }}", then: {do: fail}}]}}
"""
    end, _, _ = await run(yaml, lambda call, n: Outcome(data={"bad": True}))

    assert end.outcome.error is not None
    assert end.outcome.error.code == "POLICY_FAIL"


async def test_break_ends_the_pipeline_well_and_says_so() -> None:
    yaml = """
  tool:
  - {name: a, kind: noop, spec: {policy: {rules: [{when: "{{ output.data.stop }}", then: {do: break}}]}}}
  - {name: b, kind: noop}
"""
    end, tool, _ = await run(yaml, lambda call, n: Outcome(data={"stop": True}))

    assert end.broke
    assert end.outcome.error is None
    assert len(tool.inputs) == 1


async def test_jump_goes_to_a_label_and_is_capped() -> None:
    yaml = """
  tool:
  - {name: a, kind: noop}
  - name: b
    kind: noop
    spec: {policy: {rules: [{when: "{{ output.data.n < 6 }}", then: {do: jump, to: a}}]}}
"""
    end, tool, _ = await run(yaml, lambda call, n: Outcome(data={"n": n}))
    assert len(tool.inputs) == 6
    assert end.outcome.error is None

    endless = yaml.replace("output.data.n < 6", "true")
    capped, _, _ = await run(endless, lambda call, n: Outcome(data={"n": n}))
    assert capped.outcome.error is not None
    assert capped.outcome.error.code == "pipeline.iteration_cap"


async def test_set_of_task_and_rule_show_at_once_and_are_told_with_the_result() -> None:
    yaml = """
  tool:
  - name: a
    kind: noop
    set: {ctx.total: "{{ output.n + 1 }}", mine: "{{ output.n }}"}
    spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.note.deep: "{{ total }}"}}}}]}}
  - {name: b, kind: noop, input: {total: "{{ ctx.total }}", mine: "{{ mine }}", note: "{{ note.deep }}"}}
"""
    end, tool, _ = await run(yaml, lambda call, n: Outcome(data={"n": 41}), note={"kept": 1})

    assert tool.inputs[1] == {"total": 42, "mine": 41, "note": 42}
    assert end.variables == {"total": 42, "note": {"kept": 1, "deep": 42}}


async def test_a_rule_that_cannot_be_evaluated_fails_the_step() -> None:
    yaml = """
  tool:
    kind: noop
    spec: {policy: {rules: [{when: "{{ output.data.x + 1 }}", then: {do: continue}}]}}
"""
    end, _, _ = await run(yaml, lambda call, n: Outcome(data={"x": None}))

    assert end.outcome.error is not None
    assert end.outcome.error.code == "template.error"
