"""Commands and addresses that scripts of today use, against the whole of NoETL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

SLEEPER = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: sleeper, path: tests/sleeper}
workload: {seconds: 600, who: nobody}
workflow:
- step: sleep
  tool: {kind: python, input: {seconds: "{{ seconds }}"}, code: "import time\\ntime.sleep(seconds)\\nresult = 'slept'"}
"""


def service_client(stack: LocalStack) -> httpx.Client:
    token = (stack.home.root / "secrets" / "service.token").read_text().strip()
    return httpx.Client(
        base_url=stack.endpoint.http_url, headers={"Authorization": f"Bearer {token}"}, timeout=30.0, trust_env=False
    )


def issued_event(stack: LocalStack, execution_id: str) -> str:
    events = stack.noetl("events", execution_id, "-o", "json").document["events"]
    return next(str(event["event_id"]) for event in events if event["event_type"] == "command.issued")


def reasons(stack: LocalStack, execution_id: str) -> list[dict[str, Any]]:
    document = stack.noetl("why", execution_id, "--json").document
    found: list[dict[str, Any]] = document["reasons"]
    return found


def test_register_execute_why_and_cancel(stack: LocalStack, tmp_path: Path) -> None:
    file = tmp_path / "sleeper.yaml"
    file.write_text(SLEEPER)
    registered = stack.noetl("register", "playbook", "-f", str(file), "--json")
    started = stack.noetl("execute", "playbook", "tests/sleeper", "--payload", '{"who": "Ada"}', "--json")
    execution_id = started.document["execution_id"]

    def running() -> list[dict[str, Any]] | None:
        found = reasons(stack, execution_id)
        return found if found[0]["kind"] == "running" else None

    (reason,) = eventually(running, seconds=60) or []
    for_people = stack.noetl("why", execution_id)
    workers = stack.noetl("workers", "-o", "json").document["workers"]
    with service_client(stack) as client:
        claim = client.post(f"/api/commands/{issued_event(stack, execution_id)}/claim", json={"worker_id": "other"})
        variables = client.get(f"/api/vars/{execution_id}").json()["variables"]
        over_http = client.get(f"/api/executions/{execution_id}/why").json()
        shown_workers = client.get("/api/workers").json()
    cancelled = stack.noetl("cancel", execution_id, "-o", "json")

    assert (registered.code, registered.document["path"]) == (0, "tests/sleeper")
    assert started.code == 0
    assert (reason["step"], reason["details"]["attempt"]) == ("sleep", 1)
    assert reason["details"]["worker_id"] in {worker["worker_id"] for worker in workers}
    assert "runs on" in for_people.out
    # On a slow machine its worker may have been given up meanwhile; nobody gets the attempt in any case.
    assert claim.status_code == 409, claim.text
    assert claim.json()["code"] in {"command.held", "command.closed"}
    assert variables == {"seconds": 600, "who": "Ada"}
    assert [one["step"] for one in over_http["reasons"]] == ["sleep"]
    assert shown_workers["capacity"]["slots"] >= 1
    assert cancelled.code == 0
    assert reasons(stack, execution_id)[0]["kind"] == "ended"


def test_every_shard_of_a_running_stack_has_its_owners(stack: LocalStack) -> None:
    eventually(lambda: not stack.noetl("shards", "-o", "json").document["unowned"])
    shown = stack.noetl("shards", "-o", "json").document

    assert shown["unowned"] == 0
    assert {one["role"] for one in shown["shards"]} == {"planner", "projector", "reaper"}
    text = stack.noetl("shards", "--role", "planner").out
    assert f"0-{len(shown['shards']) // 2 - 1}" in text


def test_the_same_answers_with_either_spelling_of_json(stack: LocalStack) -> None:
    either = [json.loads(stack.noetl("catalog", "list", *words).out) for words in (("--json",), ("-o", "json"))]

    assert either[0].keys() == either[1].keys()
