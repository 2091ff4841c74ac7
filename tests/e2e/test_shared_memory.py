"""A table that the worker has made is read by another service of the same node where it is in memory."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from noetl_adapters.payload.shm_directory import SHM_DIRECTORY
from noetl_core.canonical import encode
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack
from prometheus_client.parser import text_string_to_metric_families

TABLE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shared_table, path: tests/shared_table}
workflow:
- step: make
  tool: {kind: python, code: 'result = [{"n": n, "text": f"row {n}"} for n in range(2000)]'}
"""


def test_api_shows_a_table_of_the_worker_from_shared_memory(stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "table.yaml").write_text(TABLE)
    hits_before = hits(stack)

    def run() -> str:
        ran = stack.noetl("run", str(tmp_path / "table.yaml"), "-o", "json")
        assert ran.code == 0, ran
        events = stack.noetl("events", ran.document["execution_id"], "-o", "json").document["events"]
        (done,) = [event for event in events if event["event_type"] == "call.done"]
        assert len(encode(done)) < 2048
        reference = done["result"]["reference"]
        got = stack.noetl("payload", "verify", reference["ref_id"])
        assert got.code == 0, got
        # Absent if the machine was too busy or too full for a copy just then.
        return str(reference.get("ipc", {}).get("shm_name", "")) if hits(stack) > hits_before else ""

    name = eventually(run, seconds=120.0)
    assert (SHM_DIRECTORY / name).parent.is_dir()


def hits(stack: LocalStack) -> float:
    ports = json.loads(stack.home.ports_file.read_text())
    text = httpx.get(f"http://127.0.0.1:{ports['api.ops']}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "noetl_api_payload_reads_total"
        and (sample.labels["tier"], sample.labels["outcome"]) == ("shared_memory", "hit")
    )
