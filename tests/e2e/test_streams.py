"""A stream whose worker is killed in the middle: another one goes on, and no chunk is delivered twice."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

CHUNKS = 9
STREAM = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: stream, path: tests/stream}
workload: {directory: /nowhere}
workflow:
- step: read
  tool:
    kind: postgres
    auth: stream_db
    command: SELECT n FROM generate_series(1, 43) n ORDER BY n
    spec: {stream: {chunk_rows: 5}}
  next: {arcs: [{step: take, on: call.partial}, {step: after}]}
- step: take
  tool:
    kind: python
    input: {directory: "{{ directory }}", chunk: "{{ result }}"}
    code: |
      import pathlib, time
      place, index = pathlib.Path(directory), chunk["chunk_index"]
      if index == 2:
          (place / "in_the_middle").touch()
          while not (place / "go").exists():
              time.sleep(0.02)
      result = {"index": index, "numbers": [row["n"] for row in chunk["rows"]]}
      (place / f"taken-{index}").write_text(json.dumps(result))
  next: {arcs: [{step: after}]}
- step: after
  tool: {kind: python, input: {rows: "{{ read.rows }}"}, code: 'result = [row["n"] for row in rows]'}
"""


def of_type(events: Sequence[dict[str, Any]], kind: str, node: str) -> list[dict[str, Any]]:
    return [event for event in events if (event["event_type"], event["node_name"]) == (kind, node)]


def test_a_stream_survives_its_worker_and_delivers_no_chunk_twice(stack: LocalStack, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "db.json").write_text(json.dumps({"dsn": stack.owner_dsn}))
    (tmp_path / "stream.yaml").write_text(STREAM)
    put = stack.noetl("credential", "put", "stream_db", "--type", "postgres", "--data-file", str(tmp_path / "db.json"))
    assert put.code == 0, put
    started = stack.noetl(
        "run", str(tmp_path / "stream.yaml"), "--set", f"directory={tmp_path}", "--no-follow", "-o", "json"
    )
    execution_id = started.document["execution_id"]
    eventually((tmp_path / "in_the_middle").exists, seconds=60.0)

    stack.kill("worker")
    (tmp_path / "go").touch()
    ended = stack.noetl("events", execution_id, "--follow", "-o", "json")

    assert ended.code == 0, ended
    events = [json.loads(line) for line in ended.out.splitlines()]
    told = [event["meta"]["chunk_index"] for event in of_type(events, "call.partial", "read")]
    taken = [event["meta"]["chunk"]["chunk_index"] for event in of_type(events, "step.enter", "take")]
    assert told == list(range(CHUNKS))
    assert taken == list(range(CHUNKS))
    assert len(of_type(events, "command.issued", "read")) > 1
    assert len(of_type(events, "step.exit", "read")) == 1
    numbers = [json.loads((tmp_path / f"taken-{index}").read_text())["numbers"] for index in range(CHUNKS)]
    assert [number for chunk in numbers for number in chunk] == list(range(1, 44))
    assert stack.noetl("result", execution_id, "after", "-o", "json").document["result"] == list(range(1, 44))
    streamed = stack.noetl("result", execution_id, "read", "-o", "json").document["result"]
    assert [row["n"] for row in streamed["rows"]] == list(range(1, 44))
