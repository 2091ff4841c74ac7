"""States at points of a history, over HTTP and gRPC, from a real log."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from noetl.replay.v1 import replay_pb2 as pb
from noetl.replay.v1 import replay_pb2_grpc as pb_grpc
from noetl_contracts.clients import ReplayClient
from noetl_core.replay.history import Replay
from noetl_core.replay.points import Point
from noetl_core.surfaces.shapes import Surface

from tests.integration.services.test_api_http import is_problem, registered, started


async def told(client: Any, execution_id: str, **body: Any) -> Any:
    event = {"execution_id": execution_id, "event_type": "order.told", **body}
    return await client.http.post("/api/events", json=event)


def order(**said: Any) -> dict[str, Any]:
    return {"type": "order", "id": "A/7", **said}


async def test_a_state_is_that_of_its_point_over_http_and_grpc(api: Any) -> None:
    ada = await api.as_("ada")
    await registered(ada)
    execution_id = await started(ada)
    first = await told(ada, execution_id, business_object=order(state={"total": 1}), expected_object_version=0)
    late = await told(ada, execution_id, business_object=order(deleted=True), expected_object_version=0)
    second = await told(ada, execution_id, business_object=order(patch={"by": "Ada"}), expected_object_version=1)
    point = {"execution_id": execution_id, "as_of_event_id": first.json()["event_id"]}

    at_first = (await ada.http.get("/api/replay/state", params=point)).json()
    at_head = (await ada.http.get("/api/replay/state", params={"execution_id": execution_id})).json()
    over_grpc = await ReplayClient(await api.channel("ada")).state(None, int(execution_id), Point(stream_version=2))

    assert is_problem(late, 409, "event.version_conflict")
    assert second.status_code == 200
    assert (at_first["stream_version"], at_head["stream_version"], at_head["head_version"]) == (2, 3, 3)
    (object_then,), (object_now,) = at_first["rows"]["business_objects"], at_head["rows"]["business_objects"]
    assert (object_then["attributes"], object_then["version"]) == ({"total": 1}, 1)
    assert (object_now["attributes"], object_now["version"]) == ({"total": 1, "by": "Ada"}, 2)
    assert at_first["checksum"] == over_grpc.checksum != at_head["checksum"]
    assert over_grpc.rows[Surface.BUSINESS_OBJECTS]["order/A/7"] == object_then
    replay = Replay(int(execution_id))
    replay.take((await ada.events.read(None, int(execution_id))).events)
    assert replay.result().checksums()["checksum"] == at_head["checksum"]


async def test_pages_and_payloads_of_a_state(api: Any) -> None:
    ada = await api.as_("ada")
    await registered(ada)
    execution_id = await started(ada)
    for number in range(5):
        await told(ada, execution_id, business_object={"type": "order", "id": str(number), "state": {}})
    query = {"execution_id": execution_id, "page_size": 2, "resolve_payloads": True}

    pages = [(await ada.http.get("/api/replay/state", params=query)).json()]
    while token := pages[-1]["next_page_token"]:
        pages.append((await ada.http.get("/api/replay/state", params={**query, "page_token": token})).json())

    objects = [row["object_id"] for page in pages for row in page["rows"].get("business_objects", [])]
    assert objects == ["0", "1", "2", "3", "4"]
    assert len(pages) == 4
    assert [one["status"] for page in pages for one in page["payloads"]] == ["verified"]


async def test_points_that_there_are_not_are_problems(api: Any) -> None:
    ada, rival = await api.as_("ada"), await api.as_("rival")
    await registered(ada)
    execution_id = await started(ada)

    async def ask(client: Any, **query: Any) -> Any:
        return await client.http.get("/api/replay/state", params={"execution_id": execution_id, **query})

    assert is_problem(await ask(rival), 404, "execution.not_found")
    assert is_problem(await ask(ada, as_of_position=99), 400, "request.invalid")
    assert is_problem(await ask(ada, as_of_time="2020-01-01T00:00:00Z"), 400, "request.invalid")
    for beyond in ("9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+05:00"):
        assert is_problem(await ask(ada, as_of_time=beyond), 400, "request.invalid")
        assert is_problem(await told(ada, execution_id, event_time=beyond), 400, "request.invalid")
    assert is_problem(await ask(ada, as_of_event_id="4711"), 404, "event.not_found")
    assert is_problem(await ask(ada, projection="rows"), 400, "request.invalid")
    for nowhere in ({"as_of_position": 0}, {"as_of_position": ""}, {"as_of_time": ""}):
        assert is_problem(await ask(ada, **nowhere), 422, "request.invalid")
    assert is_problem(await ask(ada, as_of_event_id=""), 400, "request.invalid")
    misspelt = await ask(ada, as_of_postion=1, zzz=2)
    assert is_problem(misspelt, 400, "request.invalid")
    assert misspelt.json()["detail"] == "there is no parameter 'as_of_postion' (did you mean 'as_of_position'?), 'zzz'"
    assert misspelt.json()["parameters"] == "as_of_postion, zzz"
    nobody = await ada.http.get("/api/replay/state?zzz=2", headers={"Authorization": "Bearer nobody"})
    assert is_problem(nobody, 401, "auth.unauthenticated")
    stub: Any = pb_grpc.ReplayServiceStub(await api.channel("ada"))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await stub.GetState(pb.GetStateRequest(execution_id=execution_id, as_of_position=0))
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert is_problem(await told(ada, execution_id, business_object={"type": "order"}), 400, "request.invalid")
    alive = await told(ada, execution_id, business_object=order(status="deleted", state={}))
    assert is_problem(alive, 400, "request.invalid")
