"""A worker is killed in the middle of frames: their rows are run again as a whole, all others once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

# Each row notes that it runs. Those that run before the gate is open wait for it, unless they run again.
FRAMES = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: killed_frames, path: tests/killed_frames}
workload: {directory: /nowhere}
workflow:
- step: work
  loop:
    in: "{{ range(40) | list }}"
    iterator: n
    spec:
      mode: parallel
      max_in_flight: 2
      engine: inline
      frame: {max_rows: 10, lease_seconds: 3, heartbeat_seconds: 1}
  tool:
    kind: python
    input: {directory: "{{ directory }}", n: "{{ iter.n }}", key: "{{ idempotency_key }}"}
    code: |
      import pathlib, time
      place = pathlib.Path(directory)
      runs = len(list(place.glob(f"row-{n}-*")))
      (place / f"row-{n}-{runs}").write_text(key)
      while runs == 0 and not (place / "go").exists():
          time.sleep(0.02)
      result = n * n
  next: {arcs: [{step: sum}]}
- {step: sum, tool: {kind: noop, result: "{{ work.results | sum }}"}}
"""


def test_frames_of_a_killed_worker_are_run_again_with_the_same_rows_and_keys(stack: LocalStack, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "frames.yaml").write_text(FRAMES)
    command = ("run", str(tmp_path / "frames.yaml"), "--set", f"directory={tmp_path}", "--no-follow", "-o", "json")
    execution_id = str(stack.noetl(*command).document["execution_id"])
    eventually(lambda: len(list(tmp_path.glob("row-*"))) == 2, seconds=90.0)

    stack.kill("worker")
    (tmp_path / "go").touch()

    ended = stack.noetl("events", execution_id, "--follow", "--timeout", "180", "-o", "json")
    assert ended.code == 0, ended
    counts = Counter(event["event_type"] for event in ended.lines)
    assert (counts["stage.opened"], counts["stage.closed"], counts["loop.done"]) == (1, 1, 1)
    assert counts["frame.committed"] == 4
    assert counts["frame.abandoned"] in (1, 2)
    assert counts["frame.dispatched"] == counts["frame.started"] == 4 + counts["frame.abandoned"]
    for row in (0, 10):
        keys = [path.read_text() for path in tmp_path.glob(f"row-{row}-*")]
        assert len(keys) == 2 and len(set(keys)) == 1, "the key of a row is one"
    progress = stack.noetl("status", execution_id, "-o", "json").document["loop_progress"]["work"]
    assert (progress["total"], progress["done"], progress["failed"], progress["running"]) == (40, 40, 0, 0)
    assert stack.noetl("result", execution_id, "sum", "-o", "json").document["result"] == 20_540
