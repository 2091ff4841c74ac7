"""A worker that speaks HTTP runs the frames of a cursor, against the whole of NoETL, while no other worker is there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_core.canonical import encode
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

CURSOR = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: cursor_over_http, path: tests/cursor_over_http}
workflow:
- step: each
  loop:
    cursor: {kind: postgres, auth: nobody, claim: "SELECT 1 LIMIT {{ __frame_max_rows }}"}
    spec: {max_in_flight: 1, engine: inline, frame: {max_rows: 10, lease_seconds: 60, heartbeat_seconds: 5}}
  tool: {kind: noop}
  next: {arcs: [{step: check, when: "{{ output.data.processed == 5 and output.data.frame_count == 2 }}"}]}
- {step: check, tool: {kind: noop, result: counted}}
"""


class HttpWorker:
    """Knows the routes, and the directory in which payloads are kept."""

    def __init__(self, stack: LocalStack, client: httpx.Client) -> None:
        self._payloads = DirectoryPayloadStore(stack.home.root / "payloads")
        self._client = client

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self._client.post(path, json={"worker_id": "over-http", **body})
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def store(self, values: list[Any]) -> dict[str, Any]:
        put = self._payloads.put(
            tenant_id="default", organization_id="default", data=encode(values), media_type="application/json"
        )
        return dict(asyncio.run(put).to_json())

    def run(self, frame: Mapping[str, Any], rows: list[Any]) -> dict[str, Any]:
        """Claimed by whatever means, told, kept, run and committed; returns the frame that follows."""
        path = f"/api/frames/{frame['frame_id']}"
        started = self.post(f"{path}/start", rows_ref=self.store(rows), row_count=len(rows))
        self.post(f"{path}/heartbeat", lease_seconds=60)
        output = {**self.store([row * 10 for row in rows]), "type": "payload_store", "ref_id": path}
        committed = self.post(
            f"{path}/commit", cursor=started["cursor"], row_count=len(rows), output_ref=output, wants_next=True
        )
        following: dict[str, Any] = committed["next"]
        return following


def service_client(stack: LocalStack) -> httpx.Client:
    token = (stack.home.root / "secrets" / "service.token").read_text().strip()
    return httpx.Client(
        base_url=stack.endpoint.http_url, headers={"Authorization": f"Bearer {token}"}, timeout=30.0, trust_env=False
    )


def opened_stage(stack: LocalStack, execution_id: str) -> str | None:
    listed = stack.noetl("frames", "list", execution_id, "-o", "json")
    return next((stage["stage_id"] for stage in listed.document["stages"]), None) if listed.code == 0 else None


def test_a_loop_over_a_cursor_is_run_by_a_worker_that_speaks_http(stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "cursor.yaml").write_text(CURSOR)
    with service_client(stack) as client, stack.held_down("worker"):
        worker = HttpWorker(stack, client)
        started = stack.noetl("run", str(tmp_path / "cursor.yaml"), "--no-follow", "-o", "json")
        execution_id = str(started.document["execution_id"])
        stage_id = eventually(lambda: opened_stage(stack, execution_id), seconds=60)
        claim = f"/api/stages/{stage_id}/frames/claim"
        (first,) = worker.post(claim, command_id="first", lease_seconds=60)["frames"]
        (again,) = worker.post(claim, command_id="first", lease_seconds=60)["frames"]
        last = worker.run(worker.run(first, [1, 2, 3]), [4, 5])
        worker.post(f"/api/frames/{last['frame_id']}/commit", cursor=last["cursor"], row_count=0, wants_next=True)

    ended = stack.noetl("events", execution_id, "--follow", "--timeout", "120", "-o", "json")
    assert ended.code == 0, ended
    assert again["frame_id"] == first["frame_id"]
    assert 0 < again["lease_seconds"] <= first["lease_seconds"] == 60
    counts = Counter(event["event_type"] for event in ended.lines)
    assert (counts["frame.dispatched"], counts["frame.started"], counts["frame.committed"]) == (3, 2, 3)
    assert stack.noetl("result", execution_id, "check", "-o", "json").document["result"] == "counted"
