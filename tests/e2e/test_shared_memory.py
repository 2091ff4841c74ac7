"""A table that the worker has made is read by another service of the same node where it is in memory."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from noetl_adapters.payload.shm_directory import SHM_DIRECTORY
from noetl_core.canonical import encode
from noetl_core.payload_hints import IPC
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
    hits_before, refusals_before = hits(stack), refusals(stack)

    def run() -> bool:
        ran = stack.noetl("run", str(tmp_path / "table.yaml"), "-o", "json")
        assert ran.code == 0, ran
        events = stack.noetl("events", ran.document["execution_id"], "-o", "json").document["events"]
        (done,) = [event for event in events if event["event_type"] == "call.done"]
        assert len(encode(done)) < 2048
        reference = done["result"]["reference"]
        if IPC in reference:
            assert (SHM_DIRECTORY / reference[IPC]["shm_name"]).parent.is_dir()
        got = stack.noetl("payload", "verify", reference["ref_id"])
        assert got.code == 0, got
        # A machine that is too full just then has no copy, and says so.
        return hits(stack) > hits_before or refusals(stack) > refusals_before

    eventually(run, seconds=120.0)


def hits(stack: LocalStack) -> float:
    """Times that api has found a table in shared memory."""
    return counted(stack, "api", "noetl_api_payload_reads_total", outcome="hit")


def refusals(stack: LocalStack) -> float:
    """Times that the worker could not leave one there."""
    return counted(stack, "worker", "noetl_worker_payload_copies_refused_total")


def counted(stack: LocalStack, service: str, metric: str, **labels: str) -> float:
    ports = json.loads(stack.home.ports_file.read_text())
    text = httpx.get(f"http://127.0.0.1:{ports[f'{service}.ops']}/metrics").text
    wanted = {"tier": "shared_memory", **labels}
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == metric and wanted.items() <= sample.labels.items()
    )
