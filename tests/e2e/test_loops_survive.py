"""A worker is killed in the middle of a parallel loop: its items are run again, all others once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

LOOP = Path(__file__).parent / "fixtures" / "loop_state_recovery.yaml"


def test_items_of_a_killed_worker_are_run_again_with_the_same_key(stack: LocalStack, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    command = ("run", str(LOOP), "--set", f"directory={tmp_path}", "--no-follow", "-o", "json")
    execution_id = str(stack.noetl(*command).document["execution_id"])
    eventually(lambda: len(list(tmp_path.glob("item-*"))) == 4, seconds=90.0)

    stack.kill("worker")
    (tmp_path / "go").touch()

    ended = stack.noetl("events", execution_id, "--follow", "--timeout", "180", "-o", "json")
    assert ended.code == 0, ended
    of_items = [event for event in ended.lines if "loop_iteration_index" in event["meta"]]
    per_item = {
        kind: Counter(event["meta"]["loop_iteration_index"] for event in of_items if event["event_type"] == kind)
        for kind in ("loop.item", "call.done", "command.abandoned")
    }
    assert per_item["loop.item"] == per_item["call.done"] == Counter(range(12))
    assert set(per_item["command.abandoned"]) <= {0, 1, 2, 3} and per_item["command.abandoned"]
    undisturbed = set(range(12)) - set(per_item["command.abandoned"])
    events = Counter(event["meta"]["loop_iteration_index"] for event in of_items)
    assert {events[index] for index in undisturbed} == {6}, "never more than eight"
    assert [event["event_type"] for event in ended.lines].count("loop.done") == 1
    for index in per_item["command.abandoned"]:
        assert len({path.read_text() for path in tmp_path.glob(f"item-{index}-*")}) == 1, "the key of an item is one"

    status = stack.noetl("status", execution_id, "-o", "json").document
    progress = status["loop_progress"]["work"]
    assert {name: progress[name] for name in ("total", "done", "failed", "running", "status")} == {
        "total": 12,
        "done": 12,
        "failed": 0,
        "running": 0,
        "status": "ok",
    }
    assert stack.noetl("result", execution_id, "sum", "-o", "json").document["result"] == 506
    results = stack.noetl("result", execution_id, "work", "-o", "json").document["result"]["results"]
    assert results == [n * n for n in range(12)]
