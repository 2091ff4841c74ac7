"""Rows that poison their frames, for the people who look after them: found, reported, mended, and run once more."""

from __future__ import annotations

from pathlib import Path

from noetl_testkit.local_stack import LocalStack

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: poisoned, path: tests/poisoned}
workload: {bad: [17, 40]}
workflow:
- step: each
  loop:
    in: "{{ range(60) | list }}"
    spec:
      mode: parallel
      max_in_flight: 2
      engine: inline
      failure_budget: {count: 2}
      frame: {max_rows: 20, process: frame, on_failure: bisect}
  tool:
    kind: python
    input: {rows: "{{ frame.rows }}", directory: "{{ directory }}", bad: "{{ bad }}"}
    code: |
      import pathlib
      mended = (pathlib.Path(directory) / "mended").exists()
      wrong = [row for row in rows if row in bad and not mended]
      if wrong:
          raise ValueError(f"poison: {wrong}")
      result = {"done": rows}
  next: {arcs: [{step: after}]}
- {step: after, tool: {kind: noop}}
"""


def test_poison_rows_are_listed_with_their_errors_and_run_again_alone(stack: LocalStack, tmp_path: Path) -> None:
    file = tmp_path / "poisoned.yaml"
    file.write_text(PLAYBOOK)
    ran = stack.noetl("run", str(file), "--set", f"directory={tmp_path}", "-o", "json", seconds=300.0)
    assert ran.code == 0, ran
    old = ran.document["execution_id"]

    events = stack.noetl("events", old, "-o", "json").document["events"]
    metrics = next(one["meta"]["metrics"] for one in events if one["event_type"] == "frame.committed")
    assert metrics["tasks"]["each_task"]["kind"] == "python"
    assert metrics["tasks"]["each_task"]["tool_ms"] > 0
    (stage,) = stack.noetl("frames", "list", old, "-o", "json").document["stages"]
    assert (stage["kind"], stage["status"], stage["success"], stage["failed"]) == ("loop", "partial", 58, 2)
    failed = stack.noetl("frames", "failed", old, "each", "-o", "json").document
    assert [(row["index"], row["row"], row["error"]["code"]) for row in failed["rows"]] == [
        (17, 17, "PY_ValueError"),
        (40, 40, "PY_ValueError"),
    ]
    assert "poison: [17]" in stack.noetl("frames", "failed", old, "each").out

    (tmp_path / "mended").touch()
    again = stack.noetl("frames", "redrive", old, "each", "--reason", "mended", "-o", "json")
    assert (again.code, again.document["row_count"]) == (0, 2), again
    new = again.document["execution_id"]
    assert stack.noetl("events", new, "--follow", seconds=300.0).code == 0
    status = stack.noetl("status", new, "-o", "json").document
    assert status["status"] == "COMPLETED"
    results = stack.noetl("result", new, "each", "-o", "json").document["result"]
    assert [one["done"] for one in results["results"]] == [[17, 40]]
    nothing = stack.noetl("frames", "redrive", new, "each")
    assert nothing.code != 0
    assert "has failed" in nothing.err
