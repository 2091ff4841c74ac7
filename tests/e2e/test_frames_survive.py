"""A worker is killed in the middle of frames: their rows are run again as a whole, all others once."""

from __future__ import annotations

import json
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
      frame: {max_rows: 10, lease_seconds: 15, heartbeat_seconds: 3, max_attempts: 50}
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


def has_begun(path: Path) -> bool:
    """Whether a note is there and written: a file exists before it has its text."""
    return path.exists() and bool(path.read_text())


def test_frames_of_a_killed_worker_are_run_again_with_the_same_rows_and_keys(stack: LocalStack, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "frames.yaml").write_text(FRAMES)
    command = ("run", str(tmp_path / "frames.yaml"), "--set", f"directory={tmp_path}", "--no-follow", "-o", "json")
    execution_id = str(stack.noetl(*command).document["execution_id"])
    eventually(lambda: all(has_begun(tmp_path / f"row-{row}-0") for row in (0, 10)), seconds=90.0)

    stack.kill("worker")
    (tmp_path / "go").touch()

    ended = stack.noetl("events", execution_id, "--follow", "--timeout", "180", "-o", "json")
    assert ended.code == 0, ended
    counts = Counter(event["event_type"] for event in ended.lines)
    assert (counts["stage.opened"], counts["stage.closed"], counts["loop.done"]) == (1, 1, 1)
    assert counts["frame.committed"] == 4
    assert counts["frame.abandoned"] >= 1
    assert counts["frame.dispatched"] == counts["frame.started"] == 4 + counts["frame.abandoned"]
    for row in (0, 10):
        keys = [path.read_text() for path in tmp_path.glob(f"row-{row}-*")]
        assert len(keys) >= 2 and len(set(keys)) == 1, "the key of a row is one"
    progress = stack.noetl("status", execution_id, "-o", "json").document["loop_progress"]["work"]
    assert (progress["total"], progress["done"], progress["failed"], progress["running"]) == (40, 40, 0, 0)
    assert stack.noetl("result", execution_id, "sum", "-o", "json").document["result"] == 20_540


CURSOR = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: killed_cursor, path: tests/killed_cursor}
workload: {directory: /nowhere}
workflow:
- step: make
  tool:
    kind: postgres
    auth: frames_db
    command: |
      CREATE TABLE IF NOT EXISTS public.frames_customer (id integer PRIMARY KEY, owner text, score integer);
      TRUNCATE public.frames_customer;
      INSERT INTO public.frames_customer SELECT n FROM generate_series(1, 25) n
  next: {arcs: [{step: enrich}]}
- step: enrich
  loop:
    cursor:
      kind: postgres
      auth: frames_db
      claim: |
        UPDATE public.frames_customer SET owner = '{{ __frame_id }}' WHERE id IN (SELECT id FROM public.frames_customer
        WHERE score IS NULL AND coalesce(owner, '{{ __frame_id }}') = '{{ __frame_id }}'
        ORDER BY id LIMIT {{ __frame_max_rows }} FOR UPDATE SKIP LOCKED) RETURNING id
    iterator: customer
    spec:
      max_in_flight: 2
      engine: inline
      frame: {max_rows: 10, process: frame, lease_seconds: 15, heartbeat_seconds: 3, max_attempts: 50}
  tool:
  - name: note
    kind: python
    input: {directory: "{{ directory }}", ids: "{{ frame.rows | map(attribute='id') | list }}"}
    code: |
      import pathlib, time
      place, ids = pathlib.Path(directory), sorted(ids)
      runs = len(list(place.glob(f"frame-{ids[0]}-*")))
      (place / f"frame-{ids[0]}-{runs}").write_text(str(ids))
      while runs == 0 and not (place / "go").exists():
          time.sleep(0.02)
      result = {"ids": ", ".join(map(str, ids))}
  - name: save
    kind: postgres
    auth: frames_db
    command: UPDATE public.frames_customer SET score = id * 10 WHERE id IN ({{ note.ids }})
  next: {arcs: [{step: check, when: "{{ output.data.processed == 25 and output.data.frame_count >= 3 }}"}]}
- step: check
  tool:
    kind: postgres
    auth: frames_db
    command: SELECT count(*) AS n FROM public.frames_customer WHERE score = id * 10
"""


def begun_frames(place: Path) -> set[str]:
    """By the first row of each: which rows two claims at once share out is for Postgres to say."""
    return {path.name.split("-")[1] for path in place.glob("frame-*") if has_begun(path)}


def test_rows_that_a_killed_worker_has_claimed_through_a_cursor_are_run_again(
    stack: LocalStack, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "db.json").write_text(json.dumps({"dsn": stack.owner_dsn}))
    (tmp_path / "cursor.yaml").write_text(CURSOR)
    put = stack.noetl("credential", "put", "frames_db", "--type", "postgres", "--data-file", str(tmp_path / "db.json"))
    assert put.code == 0, put
    command = ("run", str(tmp_path / "cursor.yaml"), "--set", f"directory={tmp_path}", "--no-follow", "-o", "json")
    execution_id = str(stack.noetl(*command).document["execution_id"])
    eventually(lambda: len(begun_frames(tmp_path)) >= 2, seconds=90.0)
    begun = begun_frames(tmp_path)

    stack.kill("worker")
    (tmp_path / "go").touch()

    ended = stack.noetl("events", execution_id, "--follow", "--timeout", "180", "-o", "json")
    assert ended.code == 0, ended
    counts = Counter(event["event_type"] for event in ended.lines)
    assert (counts["stage.opened"], counts["stage.closed"], counts["loop.done"]) == (1, 1, 1)
    assert counts["frame.abandoned"] >= 1
    for first in begun:
        assert len({path.read_text() for path in tmp_path.glob(f"frame-{first}-*")}) == 1, "the rows are the same"
    rows = stack.noetl("result", execution_id, "check", "-o", "json").document["result"]["rows"]
    assert rows == [{"n": 25}]
    result = stack.noetl("result", execution_id, "enrich", "-o", "json").document["result"]
    assert (result["processed"], result["failed"], result["status"]) == (25, 0, "ok")
    counts_of_rows = [frame["row_count"] for frame in result["frames"]]
    assert sum(counts_of_rows) == 25 and max(counts_of_rows) == 10
