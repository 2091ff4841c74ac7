"""The examples, run by the command that a person would type, on real processes."""

from pathlib import Path
from typing import Any

from noetl_cli.dev.sql import fetch_value
from noetl_testkit.local_stack import LocalStack

TWO_STEPS = [
    "playbook.initialized",
    *("workflow.initialized", "step.enter", "command.issued"),
    *("command.claimed", "command.started"),
    *("call.done", "command.completed", "step.exit"),
    *("step.enter", "command.issued", "command.claimed", "command.started"),
    *("call.done", "command.completed", "step.exit", "workflow.completed", "playbook.completed"),
]


def test_hello_world_completes_and_its_result_can_be_read(stack: LocalStack, examples: Path) -> None:
    ran = stack.noetl("run", str(examples / "hello_world.yaml"))

    assert (ran.code, ran.err) == (0, "")
    assert "COMPLETED in " in ran.out
    assert 'result of greet: "Hello, world"' in ran.out


def test_two_steps_are_eighteen_events_in_at_most_six_transactions(stack: LocalStack, examples: Path) -> None:
    execution_id, events = run_between_heartbeats(stack, examples / "two_steps.yaml")
    assert [event["event_type"] for event in events["events"]] == TWO_STEPS
    assert [event["stream_version"] for event in events["events"]] == list(range(1, 19))
    assert (events["head_version"], events["terminal"]) == (18, True)

    assert transactions_of(stack, execution_id) <= 6
    results = stack.noetl("result", execution_id, "-o", "json").document["results"]
    assert results == {
        "greet": {"text": "Hello, Ada", "length": 10},
        "shout": {"text": "HELLO, ADA!", "length": 11},
    }


def test_a_worker_that_waits_has_its_claim_with_the_decision(stack: LocalStack, examples: Path) -> None:
    def transactions() -> int:
        execution_id, _ = run_between_heartbeats(stack, examples / "two_steps.yaml")
        return transactions_of(stack, execution_id)

    # A worker that has just run something else, or whose wait was over, is woken by a hint: one more.
    assert any(transactions() == 4 for _ in range(10))


def transactions_of(stack: LocalStack, execution_id: str) -> int:
    query = "SELECT count(DISTINCT xmin::text) FROM noetl.event WHERE execution_id = $1"
    return int(fetch_value(stack.owner_dsn, query, int(execution_id)))


def run_between_heartbeats(stack: LocalStack, file: Path) -> tuple[str, Any]:
    """An execution and its events; one into which a heartbeat fell, which is nothing wrong, is not taken."""
    for _ in range(10):
        ran = stack.noetl("run", str(file), "--set", "who=Ada", "-o", "json")
        assert ran.code == 0, ran
        events = stack.noetl("events", ran.document["execution_id"], "-o", "json").document
        if not any(event["event_type"] == "command.heartbeat" for event in events["events"]):
            return ran.document["execution_id"], events
    raise AssertionError("every execution was so slow that a heartbeat fell into it")


def test_an_arc_that_holds_leads_through_the_review_and_the_ways_meet_again(stack: LocalStack, examples: Path) -> None:
    ran = stack.noetl("run", str(examples / "conditional.yaml"), "-o", "json")

    assert ran.code == 0, ran
    steps = {step["step"]: (step["status"], step["activation"]) for step in ran.document["steps"]}
    assert steps == {"score": ("done", 1), "review": ("done", 1), "done": ("done", 1)}
    results = stack.noetl("result", ran.document["execution_id"], "-o", "json").document["results"]
    assert results["done"] == {"risk": 1.2, "approved": True}


def test_an_arc_that_does_not_hold_has_the_review_skipped(stack: LocalStack, examples: Path) -> None:
    ran = stack.noetl("run", str(examples / "conditional.yaml"), "--set", "amount=80", "-o", "json")

    assert ran.code == 0, ran
    steps = {step["step"]: step["status"] for step in ran.document["steps"]}
    assert steps == {"score": "done", "review": "skipped", "done": "done"}


def test_a_failure_that_an_arc_handles_is_no_failure_of_the_execution(stack: LocalStack, examples: Path) -> None:
    ran = stack.noetl("run", str(examples / "failing.yaml"), "-o", "json")

    assert ran.code == 0, ran
    steps = {step["step"]: step["status"] for step in ran.document["steps"]}
    assert steps == {"divide": "failed", "recover": "done", "report": "skipped"}
    result = stack.noetl("result", ran.document["execution_id"], "recover", "-o", "json").document["result"]
    assert result["recovered"] is True
    assert result["code"] == "PY_ZeroDivisionError"


def test_a_failure_that_nothing_handles_fails_the_execution_with_step_and_code(
    stack: LocalStack, examples: Path
) -> None:
    file = str(examples / "failing.yaml")

    ran = stack.noetl("run", file, "--set", "handled=false", "-o", "json")
    assert ran.code == 1
    assert ran.document["status"] == "FAILED"
    assert (ran.document["error"]["step"], ran.document["error"]["code"]) == ("divide", "PY_ZeroDivisionError")

    text = stack.noetl("run", file, "--set", "handled=false")
    assert text.code == 1
    assert "step 'divide': division by zero (PY_ZeroDivisionError)" in text.out
    assert '    line 1: result = {"quotient": 100 / divisor}' in text.out.splitlines()
    status = stack.noetl("status", ran.document["execution_id"], "-o", "json")
    assert (status.code, status.document["status"], status.document["error"]) == (1, "FAILED", ran.document["error"])
