"""What clients ask besides playbooks and executions: variables, commands, workers and shards."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from noetl_contracts.clients import ShardClient, WorkerClient
from noetl_core.commands.events import CommandClaimed, CommandIssued
from noetl_core.errors import NotPermitted
from noetl_core.events import to_draft
from noetl_core.executions.events import CtxUpdated
from noetl_core.playbook.schema import playbook_schema
from noetl_core.ports.leases import Replica
from noetl_core.ports.workers import WorkerReport
from noetl_testkit.compliance.event_log import history, request

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: examples/hello}
workload: {who: world, limit: 3}
workflow:
- {step: greet, tool: {kind: noop}}
"""
ISSUED = CommandIssued(
    command_id="c1", step="greet", pipeline=True, activation=1, attempt=1, pool="default", cause_step=""
)


async def started(client: Any) -> str:
    await client.http.post("/api/catalog/register", json={"content": PLAYBOOK})
    answer = await client.http.post("/api/execute", json={"path": "examples/hello", "workload": {"limit": 5}})
    return str(answer.json()["execution_id"])


async def test_variables_are_the_workload_and_what_was_set_since(api: Any) -> None:
    ada, service, rival = await api.as_("ada"), await api.as_("service"), await api.as_("rival")
    execution_id = await started(ada)
    changed = CtxUpdated(step="greet", values={"who": "Ada", "more": [1]})
    await service.events.append(request(int(execution_id), to_draft(changed, idempotency_key="set")))

    shown = (await ada.http.get(f"/api/vars/{execution_id}")).json()

    assert shown == {
        "execution_id": execution_id,
        "variables": {"who": "Ada", "limit": 5, "more": [1]},
        "references": {},
        "count": 3,
    }
    assert (await rival.http.get(f"/api/vars/{execution_id}")).json()["code"] == "execution.not_found"


async def test_a_command_is_shown_by_the_event_that_issued_it(api: Any) -> None:
    ada, service, rival = await api.as_("ada"), await api.as_("service"), await api.as_("rival")
    execution_id = await started(ada)
    await service.events.append(request(int(execution_id), to_draft(ISSUED, idempotency_key="issue")))
    first, issued = await history(service.events, int(execution_id))
    event_id = str(issued.envelope().event_id)

    before = (await ada.http.get(f"/api/commands/{event_id}")).json()
    claimed = CommandClaimed(command_id="c1", step="greet", worker_id="w", lease_seconds=30)
    await service.events.append(request(int(execution_id), to_draft(claimed, idempotency_key="claim")))
    after = (await ada.http.get(f"/api/commands/{event_id}")).json()
    problems = [
        (answer.status_code, answer.json()["code"])
        for answer in (
            await rival.http.get(f"/api/commands/{event_id}"),
            await ada.http.get(f"/api/commands/{first.envelope().event_id}"),
            await ada.http.get("/api/commands/12345"),
            await ada.http.get("/api/commands/one"),
            await ada.http.post(f"/api/commands/{event_id}/claim", json={"worker_id": "w"}),
            await service.http.post(f"/api/commands/{event_id}/claim", json={"worker_id": "w"}),
        )
    ]

    assert (before["execution_id"], before["command_id"]) == (execution_id, "c1")
    assert (before["node_name"], before["step"]) == ("greet:task_sequence", "greet")
    assert (before["event_id"], before["status"], before["worker_id"]) == (event_id, "issued", None)
    assert (after["status"], after["worker_id"]) == ("claimed", "w")
    assert problems == [
        (404, "event.not_found"),
        (404, "command.not_found"),
        (404, "event.not_found"),
        (400, "request.invalid"),
        (403, "auth.forbidden"),
        (503, "unavailable"),  # this replica knows no planner
    ]


async def test_what_clients_write_in_other_words_means_the_same(api: Any) -> None:
    ada = await api.as_("ada")
    parent = await started(ada)
    entry = (await ada.http.get("/api/catalog/examples/hello")).json()
    bodies: list[dict[str, Any]] = [
        {"path": "examples/hello", "version": "latest", "catalog_id": None, "payload": None, "workload": None},
        {"path": "examples/hello", "version": "1", "parent_execution_id": int(parent)},
        {"catalog_id": int(entry["catalog_id"]), "path": None, "parent_execution_id": None},
    ]

    answers = [await ada.http.post("/api/execute", json=body) for body in bodies]
    refused = await ada.http.post("/api/execute", json={"path": "examples/hello", "version": "newest"})

    assert [answer.status_code for answer in answers] == [200, 200, 200], [answer.text for answer in answers]
    assert {answer.json()["status"] for answer in answers} == {"started"}
    assert refused.status_code == 422


async def test_workers_report_and_everybody_may_look(api: Any) -> None:
    rita = await api.as_("rita")
    workers, forbidden = WorkerClient(await api.channel("service")), WorkerClient(await api.channel("ada"))
    await workers.report(WorkerReport(worker_id="w1", slots=8, busy=3, kinds=("http",)), lease_seconds=60)
    await workers.report(WorkerReport(worker_id="w2", pool="large", slots=2, busy=2), lease_seconds=60)

    listed = (await rita.http.get("/api/workers")).json()
    of_pool = (await rita.http.get("/api/workers", params={"pool": "large"})).json()

    assert listed["capacity"] == {"slots": 10, "busy": 5, "free": 5}
    assert [(one["worker_id"], one["capacity"]["free"], one["kinds"]) for one in listed["workers"]] == [
        ("w1", 5, ["http"]),
        ("w2", 0, []),
    ]
    assert [one["worker_id"] for one in of_pool["workers"]] == ["w2"]
    assert [one.report.worker_id for one in await workers.list(pool="large")] == ["w2"]
    with pytest.raises(NotPermitted):
        await forbidden.report(WorkerReport(worker_id="x"), lease_seconds=60)
    await workers.leave("w1")
    assert [one.report.worker_id for one in await workers.list()] == ["w2"]


async def test_administrators_see_who_owns_which_shard(api: Any) -> None:
    root, rita = await api.as_("root"), await api.as_("rita")
    services = ShardClient(await api.channel("service"))
    replica = Replica(role="planner", instance="planner-7", incarnation="first", address="10.0.0.7:7200")
    held = await services.hold(replica, lease_seconds=60)

    of_planners = (await root.http.get("/api/shards", params={"role": "planner"})).json()
    unknown = await root.http.get("/api/shards", params={"role": "baker"})
    forbidden = await rita.http.get("/api/shards")

    owned = [one for one in of_planners["shards"] if one["instance"] == "planner-7"]
    assert {one["shard"] for one in owned} == {lease.shard for lease in held.leases} and owned
    assert {one["address"] for one in owned} == {"10.0.0.7:7200"}
    assert of_planners["unowned"] == len(of_planners["shards"]) - len(owned)
    assert len(await services.list_shards("")) == 2 * len(of_planners["shards"]) + 1, "and the one of reapers"
    assert (unknown.status_code, forbidden.status_code) == (400, 403)
    await services.release(replica)


async def test_editors_get_the_schema_of_playbooks_without_a_token(api: Any) -> None:
    async with httpx.AsyncClient(base_url=api.http_url, timeout=30.0, trust_env=False) as stranger:
        answer = await stranger.get("/api/playbook.schema.json")

    assert answer.status_code == 200
    assert answer.json() == playbook_schema()


async def test_every_route_of_the_language_is_described(api: Any) -> None:
    ada = await api.as_("ada")

    paths = (await ada.http.get("/api/openapi.json")).json()["paths"]

    assert {
        "/api/catalog/register",
        "/api/execute",
        "/api/executions/{execution_id}",
        "/api/executions/{execution_id}/status",
        "/api/executions/{execution_id}/events",
        "/api/executions/{execution_id}/cancel",
        "/api/vars/{execution_id}",
        "/api/events",
        "/api/events/batch",
        "/api/commands/{event_id}",
        "/api/commands/{command}/claim",
        "/api/commands/{command}/heartbeat",
        "/api/commands/{command}/complete",
        "/api/workers",
        "/api/credentials",
        "/api/health",
        "/health",
    } <= paths.keys()
