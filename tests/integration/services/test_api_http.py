from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from noetl_core.append import END_KEY
from noetl_core.envelope import Draft
from noetl_testkit.compliance.event_log import chain_holds, history, request

HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: examples/hello}
workflow:
- {step: greet, tool: {kind: noop}}
"""
PROBLEM = "application/problem+json"
JSON = {"Content-Type": "application/json"}


async def registered(client: Any) -> dict[str, Any]:
    answer = await client.http.post("/api/catalog/register", json={"content": HELLO, "resource_type": "Playbook"})
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


async def started(client: Any, **body: Any) -> str:
    answer = await client.http.post("/api/execute", json={"path": "examples/hello", **body})
    assert answer.status_code == 200, answer.text
    execution_id: str = answer.json()["execution_id"]
    return execution_id


def is_problem(answer: httpx.Response, status: int, code: str) -> bool:
    body = answer.json()
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code), answer.text
    assert answer.headers["content-type"] == PROBLEM
    assert {"type", "title", "detail", "instance"} <= body.keys()
    return True


async def test_a_playbook_is_registered_found_and_listed(api: Any) -> None:
    ada = await api.as_("ada")

    first = await registered(ada)
    again = await registered(ada)
    await ada.http.post("/api/catalog/register", json={"content": HELLO + "# two\n"})
    newest = (await ada.http.get("/api/catalog/examples/hello")).json()
    old = (await ada.http.get("/api/catalog/examples/hello", params={"version": 1})).json()
    listed = (await ada.http.get("/api/catalog")).json()
    versions = (await ada.http.get("/api/catalog/examples/hello/versions")).json()

    assert (first["path"], first["version"], first["created"], first["warnings"]) == ("examples/hello", 1, True, [])
    assert (again["version"], again["created"]) == (1, False)
    assert isinstance(first["catalog_id"], str)
    assert (newest["version"], old["content"]) == (2, HELLO)
    assert [(entry["path"], entry["version"]) for entry in listed["entries"]] == [("examples/hello", 2)]
    assert [entry["version"] for entry in versions["entries"]] == [2, 1]


async def test_a_broken_playbook_is_refused_with_every_problem(api: Any) -> None:
    ada = await api.as_("ada")
    broken = HELLO.replace("kind: noop", "kind: teleport") + "- {step: greet, tool: {kind: noop}}\n"

    answer = await ada.http.post("/api/catalog/register", json={"content": broken})

    assert is_problem(answer, 422, "playbook.invalid")
    problems = {problem["code"]: problem["line"] for problem in answer.json()["problems"]}
    assert problems == {"playbook.unknown_tool": 5, "playbook.duplicate_step": 6}
    assert (await ada.http.get("/api/catalog")).json()["entries"] == []


async def test_an_execution_is_started_and_followed(api: Any) -> None:
    ada, service = await api.as_("ada"), await api.as_("service")
    await registered(ada)

    execution_id = await started(ada, payload={"n": 1})
    shown = (await ada.http.get(f"/api/executions/{execution_id}")).json()
    status = (await ada.http.get(f"/api/executions/{execution_id}/status")).json()
    await service.events.append(
        request(int(execution_id), Draft(event_type="playbook.completed", idempotency_key=END_KEY))
    )
    done = (await ada.http.get(f"/api/executions/{execution_id}/status", params={"min_version": 2})).json()

    assert shown["execution_id"] == execution_id
    assert (shown["status"], shown["path"], shown["version"]) == ("RUNNING", "examples/hello", 1)
    assert (shown["error"], shown["loop_progress"], shown["events"]) == (None, {}, None)
    assert (status["status"], status["completed"]) == ("RUNNING", False)
    assert (done["status"], done["completed"], done["failed"]) == ("COMPLETED", True, False)


async def test_the_history_is_served_in_pages(api: Any) -> None:
    ada = await api.as_("ada")
    await registered(ada)
    execution_id = await started(ada)
    batch = [{"execution_id": execution_id, "event_type": "order.seen", "meta": {"n": n}} for n in range(9)]
    await ada.http.post("/api/events/batch", json={"events": batch})

    first = (await ada.http.get(f"/api/executions/{execution_id}/events", params={"page_size": 4})).json()
    rest = (
        await ada.http.get(
            f"/api/executions/{execution_id}/events", params={"from_version": first["next_version"], "page_size": 100}
        )
    ).json()
    shown = (await ada.http.get(f"/api/executions/{execution_id}", params={"page": 3, "page_size": 4})).json()

    events = first["events"] + rest["events"]
    assert [event["stream_version"] for event in events] == list(range(1, 11))
    assert (rest["next_version"], rest["head_version"], rest["terminal"]) == (0, 10, False)
    assert events[0]["event_type"] == "playbook.initialized"
    assert events[3]["context"] == {"n": 2}
    assert {type(events[0][name]) for name in ("event_id", "execution_id")} == {str}
    assert [event["stream_version"] for event in shown["events"]] == [9, 10]
    assert shown["pagination"] == {"page": 3, "page_size": 4, "total": 10, "has_next": False}


async def test_events_are_ingested_alone_and_in_atomic_batches(api: Any) -> None:
    ada = await api.as_("ada")
    await registered(ada)
    one, other = await started(ada), await started(ada)

    single = {"execution_id": one, "event_type": "order.shipped", "idempotency_key": "7", "status": "ok"}
    first = (await ada.http.post("/api/events", json={**single, "context": {"carrier": "x"}})).json()
    again = (await ada.http.post("/api/events", json={**single, "context": {"carrier": "x"}})).json()
    mixed = [{"execution_id": (one, other)[n % 2], "event_type": "order.seen", "meta": {"n": n}} for n in range(6)]
    batch = (await ada.http.post("/api/events/batch", json={"events": mixed})).json()["events"]
    refused = await ada.http.post(
        "/api/events/batch",
        json={
            "events": [
                {"execution_id": one, "event_type": "order.lost"},
                {"execution_id": other, "event_type": "command.issued"},
            ]
        },
    )

    assert (first["stream_version"], first["duplicate"]) == (2, False)
    assert (again["event_id"], again["duplicate"]) == (first["event_id"], True)
    assert [event["execution_id"] for event in batch] == [one, other] * 3
    assert [event["stream_version"] for event in batch] == [3, 2, 4, 3, 5, 4]
    assert is_problem(refused, 403, "auth.forbidden")
    events = await history(ada.events, int(one))
    assert chain_holds(events)
    assert events[1].envelope().result == {
        "status": "ok",
        "reference": None,
        "parent_ref": None,
        "context": {"carrier": "x"},
    }
    assert len(events) == 5


async def test_an_idempotency_key_starts_one_execution(api: Any) -> None:
    ada = await api.as_("ada")
    await registered(ada)

    answers = await asyncio.gather(
        *(
            ada.http.post("/api/execute", json={"path": "examples/hello"}, headers={"Idempotency-Key": "order-7"})
            for _ in range(5)
        )
    )

    assert len({answer.json()["execution_id"] for answer in answers}) == 1
    assert sum(answer.json()["created"] for answer in answers) == 1


async def test_an_end_is_forced_once_and_an_ended_execution_is_taken_up_again(api: Any) -> None:
    ada, rival = await api.as_("ada"), await api.as_("rival")
    await registered(ada)
    one = await started(ada)
    post = ada.http.post

    early = await post(f"/api/executions/{one}/redrive", json={"step": "greet"})
    ended = [await post(f"/api/executions/{one}/finalize", json={"status": "completed"}) for _ in range(2)]
    other = await post(f"/api/executions/{one}/finalize", json={"status": "FAILED"})
    redriven = [
        await post(f"/api/executions/{one}/redrive", json={"step": "greet"}, headers={"Idempotency-Key": "again"})
        for _ in range(2)
    ]

    assert is_problem(early, 409, "execution.not_terminal")
    assert (
        ended[0].json()
        == ended[1].json()
        == {
            "execution_id": one,
            "status": "COMPLETED",
            "stream_version": 3,
            "steered_descendants": 0,
        }
    )
    assert is_problem(other, 409, "execution.already_terminal")
    assert [answer.json()["created"] for answer in redriven] == [True, False]
    again = redriven[0].json()
    assert (again["redrive_of"], again["step"], again["path"]) == (one, "greet", "examples/hello")
    shown = (await ada.http.get(f"/api/executions/{again['execution_id']}")).json()
    assert shown["state"]["redrive_of"] == one
    assert is_problem(await post(f"/api/executions/{one}/redrive"), 409, "execution.step_required")
    assert is_problem(await post(f"/api/executions/{one}/finalize", json={"status": "X"}), 400, "request.invalid")
    assert is_problem(await rival.http.post(f"/api/executions/{one}/pause"), 404, "execution.not_found")


async def test_cancelling_is_harmless_to_repeat_and_refused_after_another_end(api: Any) -> None:
    ada, service = await api.as_("ada"), await api.as_("service")
    await registered(ada)
    one, other = await started(ada), await started(ada)
    await service.events.append(request(int(other), Draft(event_type="playbook.completed", idempotency_key=END_KEY)))

    first = await ada.http.post(f"/api/executions/{one}/cancel", json={"reason": "enough"})
    again = await ada.http.post(f"/api/executions/{one}/cancel")
    late = await ada.http.post(f"/api/executions/{other}/cancel")

    cancelled = {"execution_id": one, "status": "cancelled", "stream_version": 2, "cancelled_descendants": 0}
    assert first.json() == again.json() == cancelled
    assert is_problem(late, 409, "execution.already_terminal")


async def test_a_family_is_cancelled_together_unless_told_otherwise(api: Any) -> None:
    ada = await api.as_("ada")
    await registered(ada)
    parent = await started(ada)
    child = await started(ada, parent_execution_id=parent)
    grandchild = await started(ada, parent_execution_id=child)

    alone = await ada.http.post(f"/api/executions/{parent}/cancel", json={"cascade": False})
    still = await ada.http.get(f"/api/executions/{child}/status")
    together = await ada.http.post(f"/api/executions/{parent}/cancel", json={"cascade": True})

    assert (alone.json()["cancelled_descendants"], still.json()["status"]) == (0, "RUNNING")
    assert together.json()["cancelled_descendants"] == 2
    for one in (child, grandchild):
        assert (await ada.http.get(f"/api/executions/{one}/status")).json()["status"] == "CANCELLED"
    late = await ada.http.post("/api/execute", json={"path": "examples/hello", "parent_execution_id": parent})
    assert is_problem(late, 409, "execution.already_terminal")


@pytest.mark.parametrize("stranger", ["rival", "sam"])
async def test_other_tenants_and_organizations_see_nothing(api: Any, stranger: str) -> None:
    ada, other = await api.as_("ada"), await api.as_(stranger)
    await registered(ada)
    execution_id = await started(ada)
    get, post = other.http.get, other.http.post
    own = {"execution_id": execution_id, "event_type": "order.seen"}

    for answer in (
        await get(f"/api/executions/{execution_id}"),
        await get(f"/api/executions/{execution_id}/status"),
        await get(f"/api/executions/{execution_id}/events"),
        await post(f"/api/executions/{execution_id}/cancel"),
        await post("/api/events", json=own),
        await post("/api/events/batch", json={"events": [own]}),
    ):
        assert is_problem(answer, 404, "execution.not_found")
    for answer in (
        await get("/api/catalog/examples/hello"),
        await get("/api/catalog/examples/hello/versions"),
        await post("/api/execute", json={"path": "examples/hello"}),
    ):
        assert is_problem(answer, 404, "catalog.not_found")
    assert (await get("/api/catalog")).json()["entries"] == []
    named = await get(f"/api/executions/{execution_id}", params={"tenant_id": "acme", "organization_id": "ops"})
    assert is_problem(named, 403, "auth.forbidden")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Tenant-Id": "acme", "X-Organization-Id": "ops"},
        {"Authorization": "Basic YWRhOmFkYQ=="},
        {"Authorization": "Bearer nobody"},
        {"Authorization": "ada"},
    ],
)
async def test_a_header_alone_grants_nothing(api: Any, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient(base_url=api.http_url, headers=headers, trust_env=False) as client:
        for method, path in (
            ("GET", "/api/catalog"),
            ("GET", "/api/executions/1"),
            ("GET", "/api/executions"),
            ("POST", "/api/execute"),
            ("POST", "/api/events"),
            ("POST", "/api/events/batch"),
            ("POST", "/api/catalog/register"),
            ("POST", "/api/executions/1/cancel"),
            ("POST", "/api/executions/1/pause"),
            ("POST", "/api/executions/1/resume"),
            ("POST", "/api/executions/1/finalize"),
            ("POST", "/api/executions/1/redrive"),
        ):
            answer = await client.request(method, path, json={})
            assert is_problem(answer, 401, "auth.unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_everything_that_goes_wrong_is_a_problem(api: Any) -> None:
    ada, rita = await api.as_("ada"), await api.as_("rita")
    await registered(ada)
    get, post = ada.http.get, ada.http.post

    assert is_problem(await get("/nowhere"), 404, "http.not_found")
    assert is_problem(await post("/api/health"), 405, "http.method_not_allowed")
    assert is_problem(await post("/api/execute", content=b"{", headers=JSON), 422, "request.invalid")
    assert is_problem(await post("/api/execute", json={"pathh": "x"}), 422, "request.invalid")
    assert is_problem(await post("/api/execute", json={}), 400, "request.invalid")
    assert is_problem(await get("/api/executions/abc"), 400, "request.invalid")
    assert is_problem(await get("/api/executions/99999999999999999999"), 400, "request.invalid")
    assert is_problem(await get("/api/executions", params={"page_size": 1001}), 422, "request.invalid")
    assert is_problem(await get("/api/executions", params={"status": "DONE"}), 400, "request.invalid")
    assert is_problem(await post("/api/execute", json={"path": "x", "version": 3}), 404, "catalog.not_found")
    large = {"path": "examples/hello", "payload": {"x": "x" * 1_100_000}}
    assert is_problem(await post("/api/execute", json=large), 400, "execution.invalid_payload")
    big_number = '{"path": "examples/hello", "payload": {"n": 123456789012345678901}}'
    assert is_problem(await post("/api/execute", content=big_number, headers=JSON), 400, "execution.invalid_payload")
    assert is_problem(await post("/api/execute", content=b" " * 9_000_000, headers=JSON), 413, "http.too_large")
    assert is_problem(await rita.http.post("/api/execute", json={"path": "examples/hello"}), 403, "auth.forbidden")
    no_projector = await get("/api/executions")
    assert is_problem(no_projector, 503, "unavailable")
    assert no_projector.headers["retry-after"] == "1"


async def test_health_and_openapi_need_no_token(api: Any) -> None:
    async with httpx.AsyncClient(base_url=api.http_url, timeout=30.0, trust_env=False) as client:
        health = [await client.get(path) for path in ("/health", "/api/health")]
        openapi = (await client.get("/api/openapi.json")).json()

    assert [answer.status_code for answer in health] == [200, 200]
    assert openapi["components"]["securitySchemes"] == {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of the installation: it maps to one tenant, organization and role.",
        }
    }
    assert set(openapi["paths"]) >= {
        "/api/catalog",
        "/api/catalog/register",
        "/api/catalog/{path}",
        "/api/catalog/{path}/versions",
        "/api/events",
        "/api/events/batch",
        "/api/execute",
        "/api/executions",
        "/api/executions/{execution_id}",
        "/api/executions/{execution_id}/cancel",
        "/api/executions/{execution_id}/events",
        "/api/executions/{execution_id}/finalize",
        "/api/executions/{execution_id}/pause",
        "/api/executions/{execution_id}/redrive",
        "/api/executions/{execution_id}/resume",
        "/api/executions/{execution_id}/status",
        "/api/health",
        "/health",
    }
    for path, methods in openapi["paths"].items():
        for operation in methods.values():
            assert operation["description"]
            assert ("security" in operation) == (not path.endswith(("/health", "/playbook.schema.json")))


async def test_the_trace_of_an_http_call_goes_into_the_events_that_it_causes(api: Any) -> None:
    ada = await api.as_("ada")
    await registered(ada)
    trace_id = "0af7651916cd43dd8448eb211c80319c"

    answer = await ada.http.post(
        "/api/execute",
        json={"path": "examples/hello"},
        headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"},
    )

    (first,) = await history(ada.events, int(answer.json()["execution_id"]))
    assert first.envelope().trace.split("-")[1] == trace_id


async def test_requests_are_counted_by_route(api: Any) -> None:
    ada = await api.as_("ada")
    await registered(ada)
    for _ in range(3):
        await ada.http.get("/api/executions/12345")

    value = api.group.metrics.value(
        "noetl_api_http_handled_total", method="GET", route="/api/executions/{execution_id}", status="404"
    )

    assert value == 3
    async with httpx.AsyncClient(base_url=api.ops_url, trust_env=False) as client:
        assert "noetl_api_append_seconds_bucket" in (await client.get("/metrics")).text
