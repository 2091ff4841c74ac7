"""Spark in the worker of a whole stack: the example of its page, and no process that outlives a killed worker.

It ends the session of the stack that all share, and comes after `test_spark_cluster`, which begins it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack
from noetl_testkit.result_sizes import check_result_sizes

EXAMPLE = Path(__file__).parents[2] / "examples" / "howto" / "spark.yaml"
WORD_COUNT = EXAMPLE.with_name("word_count.yaml")
OF_THE_LANGUAGE = EXAMPLE.parents[1] / "language" / "word_count.yaml"
START_SECONDS = 400.0
"""A JVM on a busy machine."""
GONE = (FileNotFoundError, ProcessLookupError)
"""What reading about a process that has ended, or is just ending, raises."""


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    try:
        listed = list(Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(child) for file in listed for child in file.read_text().split()]
    except GONE:
        return []


def is_running(pid: int) -> bool:
    """Whether it is there and more than an entry that nobody has asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except GONE:
        return False


def session_of(worker: int) -> list[int]:
    """The driver process of a worker and its JVM; nothing if it has none."""
    drivers = [pid for pid in children(worker) if b"noetl_adapters.spark.driver" in command_line(pid)]
    return [pid for driver in drivers for pid in (driver, *children(driver))]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except GONE:
        return b""


def run_example(stack: LocalStack, file: Path, *options: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The results of an example that ended well, and its events, which tell little of them."""
    ran = stack.noetl("run", str(file), *options, "-o", "json", seconds=START_SECONDS)
    assert ran.code == 0, ran
    events = stack.noetl("events", ran.document["execution_id"], "--limit", "500", "-o", "json").document["events"]
    check_result_sizes(event["result"] for event in events)
    results = stack.noetl("result", ran.document["execution_id"], "-o", "json").document["results"]
    return results, events


FRAMES = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: frames_on_spark, path: tests/frames_on_spark}
workflow:
- step: each
  loop:
    in: "{{ range(60) | list }}"
    iterator: n
    spec: {mode: parallel, max_in_flight: 4, engine: spark, frame: {max_rows: 5, row_concurrency: 5}}
  tool:
    kind: python
    input: {n: "{{ iter.n }}"}
    code: "result = n * n"
    spec: {policy: {rate_limit: {rate: 20, burst: 20, key: squares}}}
  next: {arcs: [{step: sum}]}
- {step: sum, tool: {kind: noop, result: "{{ each.results | sum }}"}}
"""
CALLS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: calls_on_spark, path: tests/calls_on_spark}
workflow:
- step: call
  loop:
    in: "{{ range(60) | list }}"
    iterator: n
    spec: {mode: parallel, max_in_flight: 4, engine: spark, frame: {max_rows: 5}}
  tool:
  - {name: web, kind: http, url: "WEB/{{ iter.n }}"}
  - {name: db, kind: postgres, auth: spark_db, command: SELECT pg_backend_pid() AS pid}
"""


def check_frames_on_spark(stack: LocalStack, file: Path) -> None:
    """Frames run in tasks, and all processes that run them keep to one rate together."""
    file.write_text(FRAMES)
    ran = stack.noetl("run", str(file), "-o", "json", seconds=START_SECONDS)
    assert ran.code == 0, ran
    execution_id = ran.document["execution_id"]
    assert stack.noetl("result", execution_id, "sum", "-o", "json").document["result"] == sum(n * n for n in range(60))
    events = stack.noetl("events", execution_id, "--limit", "500", "-o", "json").document["events"]
    dispatched = [one for one in events if one["event_type"] == "frame.dispatched"]
    committed = [one for one in events if one["event_type"] == "frame.committed"]
    assert (len(dispatched), len(committed)) == (12, 12)
    assert all("." in one["meta"]["worker_id"] for one in dispatched), "tasks claim under names of their own"
    first, last = (datetime.fromisoformat(one["ingest_time"]) for one in (dispatched[0], committed[-1]))
    assert (last - first).total_seconds() >= 1.9, "40 of 60 calls had to wait for one of 20 tokens a second"


def where_frames_ran(events: list[dict[str, Any]]) -> dict[str, set[bool]]:
    """Whether frames of each step were claimed by tasks, whose names are those of their worker and more."""
    ran: dict[str, set[bool]] = {}
    for event in events:
        if event["event_type"] == "frame.dispatched":
            ran.setdefault(event["node_name"], set()).add("." in event["meta"]["worker_id"])
    return ran


class _TellsConnection(BaseHTTPRequestHandler):
    """Answers with the port of the client, which is another one for each connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"port": self.client_address[1]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def tells_connections() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _TellsConnection) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def check_connections_on_spark(stack: LocalStack, directory: Path) -> None:
    """Connections last as long as the Python process that has them: neither a row nor a frame opens one."""
    data, file = directory / "db.json", directory / "calls.yaml"
    data.write_text(json.dumps({"dsn": stack.owner_dsn}))
    put = stack.noetl("credential", "put", "spark_db", "--type", "postgres", "--data-file", str(data))
    assert put.code == 0, put
    with tells_connections() as web:
        file.write_text(CALLS.replace("WEB", web))
        ran = stack.noetl("run", str(file), "-o", "json", seconds=START_SECONDS)
    assert ran.code == 0, ran
    rows = stack.noetl("result", ran.document["execution_id"], "call", "-o", "json").document["result"]["results"]
    ports = {row["web"]["data"]["port"] for row in rows}
    backends = {row["db"]["rows"][0]["pid"] for row in rows}
    frames = len(rows) // 5
    assert (len(rows), len(ports) < frames, len(backends) < frames) == (60, True, True), (ports, backends)


def test_the_examples_run_and_nothing_of_their_session_outlives_a_killed_worker(
    stack: LocalStack, tmp_path: Path
) -> None:
    results, _ = run_example(stack, EXAMPLE)
    assert results["report"] == {
        "columns": ["land", "orders", "amount"],
        "orders": {"Italy": 3, "Norway": 3, "Peru": 4},
        "percent": {"Italy": 30.6, "Norway": 29.4, "Peru": 40},
    }
    assert results["by_land"]["schema"][0] == {"name": "land", "type": "string"}

    results, events = run_example(stack, WORD_COUNT)
    assert results["report"] == {"words": 8, "total": 600_000, "partitions": 2}
    assert where_frames_ran(events) == {"tally": {True}, "total": {False}}, "parts in tasks, queries by the worker"

    for name, text in (("one", "a b a"), ("two", "b a")):
        (tmp_path / name).write_text(text)
    payload = tmp_path / "payload.json"
    payload.write_text(json.dumps({"files": [str(tmp_path / name) for name in ("one", "two", "missing")]}))
    results, _ = run_example(stack, OF_THE_LANGUAGE, "--payload", str(payload))
    assert {row["word"]: row["n"] for row in results["total"]["rows"]} == {"a": 3, "b": 2}
    assert results["tally"]["stats"] == {"total": 3, "success": 2, "failed": 1}

    check_frames_on_spark(stack, tmp_path / "frames.yaml")
    check_connections_on_spark(stack, tmp_path)

    session = session_of(stack.pid("worker"))
    assert len(session) >= 2, "a driver and a JVM"
    stack.kill("worker")

    eventually(lambda: not any(map(is_running, session)))
