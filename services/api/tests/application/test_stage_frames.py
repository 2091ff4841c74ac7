"""Frames over HTTP, with the bodies of the routes: the planner decides, and every answer of its has a meaning."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from noetl_api.application.frames import StageFrames
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.http.app import make_app
from noetl_api.telemetry import ApiMetrics
from noetl_core.canonical import encode
from noetl_core.envelope import StoredEvent
from noetl_core.errors import NotFound
from noetl_core.payloads import PayloadRef
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionView
from noetl_core.state_json import decode_state, encode_state
from noetl_core.timestamps import parse_time
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.health import Health
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.tokens import Tokens
from noetl_testkit.planning import Planning, ok

CALLERS = {
    "service": Caller(name="service", tenant_id="*", organization_id="*", role=Role.SERVICE),
    "ada": Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.ADMIN),
}
STORED = {"uri": "noetl://tenant/t/org/o/payloads/sha256/a", "sha256": "a", "type": "object_store", "ref_id": "r"}
ROWS = """
workflow:
- {step: load, tool: {kind: noop}, next: {arcs: [{step: each}]}}
- step: each
  loop: {in: [a, b, c, d, e], spec: {mode: parallel, max_in_flight: 2, engine: inline, frame: {max_rows: 2}}}
  tool: {kind: noop}
"""
CURSOR = """
workflow:
- step: each
  loop:
    cursor: {kind: postgres, auth: db, claim: "SELECT 1 LIMIT {{ __frame_max_rows }}"}
    spec: {max_in_flight: 1, engine: inline, frame: {max_rows: 4, lease_seconds: 20}}
  tool: {kind: noop}
"""
REDUCE = """
workflow:
- {step: load, tool: {kind: spark, sql: SELECT 1}, next: {arcs: [{step: each}]}}
- {step: each, reduce: {from: load, by: [word], partitions: 2}, tool: {kind: noop}}
"""
HERE = "noetl://tenant/*/org/*/region/eu/zone/z1/node/n1/worker/w".replace("*", "%2A")


class Visible:
    """Executions that everybody sees, or nobody."""

    def __init__(self, planning: Planning, *, seen: bool = True) -> None:
        self._planning = planning
        self._seen = seen

    async def get(self, caller: Caller, scope: Any, execution_id: int, **_: Any) -> ExecutionView:
        if not self._seen:
            raise NotFound("execution", str(execution_id), code="execution.not_found")
        return ExecutionView(
            execution_id=execution_id,
            tenant_id="t",
            organization_id="o",
            path="sales/load",
            version=3,
            catalog_id="c",
            status="RUNNING",
            last_event_type="",
            last_node_name="",
            start_time=self._planning.now,
        )


class Finder:
    """The log by frame."""

    def __init__(self, planning: Planning) -> None:
        self._planning = planning

    async def last_of_frame(self, scope: Scope | None, execution_id: int, frame_id: str) -> StoredEvent | None:
        events = self._planning.log.streams[execution_id].events
        return next((one for one in reversed(events) if one.envelope().frame_id == frame_id), None)


class Names:
    """Whose token it is stands in it."""

    def authenticate(self, header: str | None) -> Caller:
        return CALLERS[(header or "").removeprefix("Bearer ")]


class Http:
    """A worker that speaks HTTP."""

    def __init__(self, planning: Planning, *, seen: bool = True, planned: bool = True) -> None:
        self.planning = planning
        frames = StageFrames(
            executions=cast("QueryExecutions", Visible(planning, seen=seen)),
            planner=planning.actors if planned else None,
            events=Finder(planning),
            payloads=planning.payloads,
            clock=lambda: planning.now,
        )
        app = make_app(
            use_cases=cast("UseCases", SimpleNamespace(stage_frames=frames)),
            tokens=cast("Tokens", Names()),
            health=Health(),
            metrics=ApiMetrics(MetricSet()),
        )
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api")

    @property
    def stage(self) -> str:
        return self.planning.state.execution.stages["each"].stage_id

    async def post(self, path: str, body: Mapping[str, Any], *, caller: str = "service") -> httpx.Response:
        named = {"worker_id": "w", **body}
        return await self._client.post(path, json=named, headers={"Authorization": f"Bearer {caller}"})

    async def claim(self, **body: Any) -> list[dict[str, Any]]:
        answer = await self.post(f"/api/stages/{self.stage}/frames/claim", body)
        assert answer.status_code == 200, answer.text
        frames: list[dict[str, Any]] = answer.json()["frames"]
        return frames

    async def commit(self, frame: Mapping[str, Any], **changed: Any) -> httpx.Response:
        rows = frame["cursor"]["stop"] - frame["cursor"]["start"]
        body = {"cursor": frame["cursor"], "row_count": rows, "status": "COMMITTED", **changed}
        body.setdefault("output_ref", {**await self.store([]), "type": "object_store", "ref_id": "r"})
        return await self.post(f"/api/frames/{frame['frame_id']}/commit", body)

    async def store(self, rows: list[Any], *, tenant_id: str = "t") -> dict[str, Any]:
        ref = await self.planning.payloads.put(
            tenant_id=tenant_id, organization_id="o", data=encode(rows), media_type="application/json"
        )
        return dict(ref.to_json())

    async def start(self, frame: Mapping[str, Any], rows_ref: Mapping[str, Any], **body: Any) -> httpx.Response:
        return await self.post(f"/api/frames/{frame['frame_id']}/start", {"rows_ref": dict(rows_ref), **body})

    async def heartbeat(self, frame: Mapping[str, Any], **body: Any) -> httpx.Response:
        return await self.post(f"/api/frames/{frame['frame_id']}/heartbeat", body)


async def begun(**options: Any) -> Http:
    planning = await Planning().start(ROWS)
    await planning.run("load", ok())
    return Http(planning, **options)


async def begun_cursor() -> Http:
    return Http(await Planning().start(CURSOR))


def last_told(planning: Planning, event_type: str) -> Mapping[str, Any]:
    found = [one.envelope for one in planning.events() if one.envelope.event_type == event_type]
    return found[-1].meta


async def test_frames_are_claimed_kept_and_committed_without_naming_attempts() -> None:
    http = await begun()
    first, second = await http.claim(requested_count=5, command_id="", cursor={}, frame_policy={}, locality={})

    assert (first["rows"], second["rows"]) == (["a", "b"], ["c", "d"])
    assert (first["dsl_ref"], first["frame_policy"]["max_rows"]) == ("sales/load@3#each", 2)
    assert parse_time(first["lease_until"]) == http.planning.now + timedelta(seconds=120)
    kept = await http.heartbeat(first, lease_seconds=7, status="RUNNING")
    assert kept.json() == {"ok": True}
    assert last_told(http.planning, "frame.heartbeat")["lease_seconds"] == 7
    committed = (await http.commit(first, wants_next=True, events_emitted=3)).json()
    assert (committed["ok"], committed["next_action"], committed["next"]["rows"]) == (True, "run", ["e"])
    await http.commit(second)
    stopped = (await http.commit(committed["next"], wants_next=True)).json()
    assert (stopped["next_action"], stopped["next"]) == ("stop", None)
    assert http.planning.types()[-1] == "playbook.completed"


async def test_a_claim_may_name_its_slot_take_fewer_rows_and_want_a_lease_of_its_own() -> None:
    http = await begun()

    (frame,) = await http.claim(cursor={"worker_slot_id": 1}, frame_policy={"max_rows": 1}, lease_seconds=9)

    assert (frame["cursor"]["worker_slot_id"], frame["rows"]) == (1, ["a"])
    assert last_told(http.planning, "frame.dispatched")["lease_seconds"] == 9
    assert (frame["lease_seconds"], frame["step"]["lease_seconds"]) == (9, 9)
    assert frame["frame_policy"]["lease_seconds"] == 120
    assert parse_time(frame["lease_until"]) == http.planning.now + timedelta(seconds=9)
    unknown = await http.post(f"/api/stages/{http.stage}/frames/claim", {"frame_policy": {"max_bytes": 1}})
    assert unknown.status_code == 422


async def test_a_claim_that_is_called_by_a_name_gives_the_same_frames_when_it_is_repeated() -> None:
    http = await begun()

    first, second = await http.claim(requested_count=2, command_id="c-1", lease_seconds=20)
    http.planning.pass_time(5)
    await http.planning.replace_planner()
    again = await Http(http.planning).claim(requested_count=2, command_id="c-1", lease_seconds=20)

    assert [one["frame_id"] for one in again] == [first["frame_id"], second["frame_id"]]
    assert [one["rows"] for one in again] == [["a", "b"], ["c", "d"]]
    assert http.planning.types().count("frame.dispatched") == 2
    assert decode_state(encode_state(http.planning.state)) == http.planning.state
    assert again[0]["lease_seconds"] == 15, "it has used some of its lease"
    assert again[0]["lease_until"] == first["lease_until"]


async def test_another_worker_and_another_name_get_other_frames() -> None:
    http = await begun()

    (first,) = await http.claim(command_id="c-1")
    (other,) = await http.claim(command_id="c-1", worker_id="other")
    full = await http.post(f"/api/stages/{http.stage}/frames/claim", {"command_id": "c-2"})
    await http.commit(first)
    (following,) = await http.claim(command_id="c-1")

    assert (first["rows"], other["rows"], full.json()["code"]) == (["a", "b"], ["c", "d"], "stage.full")
    assert following["rows"] == ["e"], "what has ended is not given again"
    long = await http.post(f"/api/stages/{http.stage}/frames/claim", {"command_id": "c" * 256})
    assert long.status_code == 422


async def test_a_slot_that_is_named_gives_the_frame_that_it_has_with_what_is_left_of_its_lease() -> None:
    http = await begun()
    (first,) = await http.claim(cursor={"worker_slot_id": 0}, lease_seconds=9)
    http.planning.pass_time(4)

    (again,) = await http.claim(cursor={"worker_slot_id": 0}, lease_seconds=60)

    assert (again["frame_id"], again["lease_seconds"]) == (first["frame_id"], 5)
    assert again["lease_until"] == first["lease_until"]


async def test_where_frames_run_is_told_and_what_the_caller_says_of_it_wins() -> None:
    http = await begun()
    elsewhere = HERE.replace("/node/n1/worker/w", "/node/n2/worker/v")

    locality = {"prefer_node": "n2", "prefer_zone": "z1", "max_distance": "zone", "source_locality": elsewhere}
    await http.claim(worker_locator=HERE, locality=locality)

    told = last_told(http.planning, "frame.dispatched")
    assert told["placement"] == {"distance": "node", "max_distance": "zone", "within_max_distance": True}
    assert told["locality"] == {"prefer_node": "n2", "prefer_zone": "z1", "max_distance": "zone"}
    assert (told["worker_locator"], told["source_locality"]) == (HERE, elsewhere)
    far = {"max_distance": "node", "source_locality": elsewhere}
    refused = await http.post(
        f"/api/stages/{http.stage}/frames/claim", {"worker_locator": HERE, "locality": far, "worker_id": "x"}
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "placement.too_far")
    wrong = await http.post(f"/api/stages/{http.stage}/frames/claim", {"locality": {"max_distance": "moon"}})
    assert wrong.status_code == 400


async def test_what_has_ended_is_refused_with_the_event_that_ended_it() -> None:
    http = await begun()
    first, second = await http.claim(requested_count=2)
    await http.commit(first)
    end = next(one for one in http.planning.events() if one.envelope.event_type == "frame.committed")

    late = await http.commit(first, worker_id="other")
    silent = await http.heartbeat(first, worker_id="other")

    for refused in (late, silent):
        assert refused.status_code == 409
        body = refused.json()
        assert (body["error"], body["code"]) == ("frame_already_terminal", "frame.already_terminal")
        assert body["terminal_event_id"] == str(end.envelope.event_id)
    held = await http.heartbeat(second, worker_id="other")
    assert (held.status_code, "terminal_event_id" in held.json()) == (409, False)
    repeated = await http.commit(first)
    assert repeated.json()["ok"], "whoever has ended it gets the first answer again"


async def test_a_frame_that_failed_is_told_so_and_tried_again_if_that_may_help() -> None:
    http = await begun()
    (frame,) = await http.claim()

    error = {"code": "BOOM", "message": "no", "retryable": True}
    failed = await http.commit(frame, status="FAILED", output_ref=None, error=error, wants_next=True)

    assert (failed.json()["next"]["frame_id"], failed.json()["next"]["attempt"]) == (frame["frame_id"], 2)
    assert last_told(http.planning, "frame.failed")["outcome"] == "retry"


async def test_what_cannot_be_had_is_refused_by_name() -> None:
    http = await begun()
    await http.claim(requested_count=2)

    full = await http.post(f"/api/stages/{http.stage}/frames/claim", {"worker_id": "other"})
    missing = await http.post(f"/api/stages/{http.planning.execution_id}-0000/frames/claim", {})

    assert (full.status_code, full.json()["code"]) == (409, "stage.full")
    assert missing.status_code == 404


@pytest.mark.parametrize(
    "output_ref",
    [
        {"ipc": {"node_id": "n", "shm_name": "noetl-a"}},
        {**STORED, "parts": [{"ipc": {"node_id": "n"}, "sha256": "b"}]},
        {},
    ],
)
async def test_outputs_that_are_only_a_hint_are_refused_and_change_nothing(output_ref: dict[str, Any]) -> None:
    http = await begun()
    (frame,) = await http.claim()

    refused = await http.commit(frame, output_ref=output_ref)

    assert refused.status_code == 400, refused.text
    assert "frame.committed" not in http.planning.types()


async def test_outputs_that_are_not_stored_for_the_execution_are_refused_and_change_nothing() -> None:
    http = await begun()
    (frame,) = await http.claim()
    stored = await http.store(["a", "b"])
    there = PayloadRef.from_json(stored)

    partly = await http.commit(frame, output_ref={"uri": there.uri, "sha256": there.sha256})
    elsewhere = await http.commit(frame, output_ref=await http.store(["a", "b"], tenant_id="other"))
    del http.planning.payloads.objects[there.uri]
    lost = await http.commit(frame, output_ref=stored)

    assert (partly.status_code, "lacks media_type, bytes" in partly.text) == (400, True)
    assert elsewhere.status_code == 400
    assert (lost.status_code, lost.json()["code"]) == (404, "REFERENCE_NOT_AVAILABLE")
    assert "frame.committed" not in http.planning.types()
    await http.store(["a", "b"])
    assert (await http.commit(frame, output_ref=stored)).status_code == 200


async def test_whoever_comes_too_late_with_an_output_that_was_collected_meanwhile_is_told_who_ended_the_frame() -> None:
    http = await begun()
    (frame,) = await http.claim()
    late = await http.store(["late"])
    await http.commit(frame)
    del http.planning.payloads.objects[late["uri"]]

    refused = await http.commit(frame, worker_id="other", output_ref=late)

    assert (refused.status_code, refused.json()["code"]) == (409, "frame.already_terminal")


@pytest.mark.parametrize("changed", [{"row_count": 10**30}, {"cursor": {"start": 10**30}}, {"attempt": 10**30}])
async def test_numbers_that_no_message_can_carry_are_refused(changed: dict[str, Any]) -> None:
    http = await begun()
    (frame,) = await http.claim()

    assert (await http.commit(frame, **changed)).status_code == 422


async def test_frames_are_for_services_that_see_the_execution() -> None:
    http = await begun()
    path = f"/api/stages/{http.stage}/frames/claim"

    assert (await http.post(path, {}, caller="ada")).status_code == 403
    assert (await Http(http.planning, seen=False).post(path, {})).status_code == 404
    assert (await Http(http.planning, planned=False).post(path, {})).status_code == 503
    assert (await http.post("/api/stages/nothing/frames/claim", {})).status_code == 400


async def test_frames_of_a_cursor_are_claimed_started_with_their_rows_kept_and_committed() -> None:
    http = await begun_cursor()
    (frame,) = await http.claim()
    assert (frame["cursor"]["claims"], frame["rows"], frame["collection"]) == (True, None, None)

    rows_ref = await http.store([{"id": 1}, {"id": 2}, {"id": 3}])
    started = await http.start(frame, rows_ref, row_count=3)
    assert started.json() == {"ok": True, "cursor": {"start": 0, "stop": 3}}
    assert (await http.start(frame, rows_ref, row_count=3)).json() == started.json(), "safe to repeat"
    assert (await http.heartbeat(frame)).json() == {"ok": True}
    committed = await http.commit({**frame, **started.json()}, wants_next=True)
    second = committed.json()["next"]
    following = (await http.start(second, await http.store([{"id": 4}]), row_count=1)).json()
    third = (await http.commit({**second, **following}, wants_next=True)).json()["next"]
    nothing = await http.commit(third, row_count=0, output_ref=None, wants_next=True)

    assert following["cursor"] == {"start": 3, "stop": 4}
    assert nothing.json()["next_action"] == "stop"
    assert [name for name in http.planning.types() if name.startswith(("frame.", "loop."))] == [
        *("frame.dispatched", "frame.started", "frame.heartbeat", "frame.committed"),
        *("frame.dispatched", "frame.started", "frame.committed"),
        *("frame.dispatched", "frame.committed", "loop.done"),
    ]
    context = (http.planning.state.execution.steps["each"].result or {})["context"]
    assert (context["processed"], context["frame_count"]) == (4, 2)


async def test_a_lost_frame_of_a_cursor_comes_back_with_the_rows_that_were_told() -> None:
    http = await begun_cursor()
    planning = http.planning
    (frame,) = await http.claim()
    rows_ref = await http.store(["a", "b"])
    await http.start(frame, rows_ref, row_count=2)
    planning.pass_time(21)
    await planning.actors.pass_deadlines(planning.execution_id, through=planning.now)

    late = await http.start(frame, rows_ref, row_count=2)
    (again,) = await http.claim(worker_id="other")
    others = await http.start(again, await http.store(["x"]), row_count=1, worker_id="other")

    assert (late.status_code, late.json()["code"]) == (409, "command.lease_lost")
    assert (again["frame_id"], again["attempt"], again["cursor"]["claims"]) == (frame["frame_id"], 2, False)
    assert (again["collection"]["uri"], again["collection"]["begins_at"]) == (rows_ref["uri"], 0)
    assert (others.status_code, others.json()["code"]) == (409, "frame.has_rows")


async def test_rows_that_were_not_told_are_not_committed_and_none_are_found_only_by_saying_so() -> None:
    http = await begun_cursor()
    (frame,) = await http.claim()

    unknown = await http.commit(frame, row_count=2)
    forgotten = await http.commit(frame, row_count=None, output_ref=None)

    assert (unknown.status_code, forgotten.status_code) == (400, 400)
    assert "started" in unknown.json()["detail"]
    assert "frame.committed" not in http.planning.types()
    whole = await begun()
    (of_a_list,) = await whole.claim()
    assert (await whole.commit(of_a_list, row_count=0, output_ref=None)).status_code == 400
    assert (await whole.start(of_a_list, await whole.store(["a"]), row_count=1)).status_code == 400


@pytest.mark.parametrize(
    "changed",
    [
        {"ipc": {"node_id": "n", "shm_name": "noetl-a"}, "uri": None},
        {"parts": [{"ipc": {"node_id": "n"}, "sha256": "b"}]},
        {"uri": "noetl://execution/1/result/s/r"},
        {"sha256": "0" * 64},
        {"bytes": "many"},
        {"uri": 7},
    ],
)
async def test_rows_that_are_only_a_hint_or_nowhere_are_refused_and_change_nothing(changed: dict[str, Any]) -> None:
    http = await begun_cursor()
    (frame,) = await http.claim()
    rows_ref = await http.store(["a"])

    refused = await http.start(frame, {**rows_ref, **changed}, row_count=1)
    lacking = await http.start(frame, {"uri": rows_ref["uri"]}, row_count=1)

    assert (refused.status_code, lacking.status_code) == (400, 400), refused.text
    assert "lacks sha256, media_type, bytes" in lacking.json()["detail"]
    assert "frame.started" not in http.planning.types()


async def test_rows_of_others_and_rows_that_are_not_stored_are_refused() -> None:
    http = await begun_cursor()
    (frame,) = await http.claim()
    rows_ref = await http.store(["a"])
    gone = await http.store(["gone"])
    await http.planning.payloads.delete(PayloadRef.from_json(gone))

    foreign = await http.start(frame, await http.store(["a"], tenant_id="another"), row_count=1)
    missing = await http.start(frame, gone, row_count=1)
    path = f"/api/frames/{frame['frame_id']}/start"
    body = {"rows_ref": rows_ref, "row_count": 1}

    assert foreign.status_code == 400
    assert (missing.status_code, missing.json()["code"]) == (404, "REFERENCE_NOT_AVAILABLE")
    assert (await http.post(path, body, caller="ada")).status_code == 403
    assert (await Http(http.planning, seen=False).post(path, body)).status_code == 404
    assert (await Http(http.planning, planned=False).post(path, body)).status_code == 503
    assert (await http.post(path, {**body, "row_count": 0})).status_code == 422
    assert "frame.started" not in http.planning.types()


async def test_a_frame_that_has_ended_is_not_started_and_the_event_that_ended_it_is_told() -> None:
    http = await begun_cursor()
    (frame,) = await http.claim()
    rows_ref = await http.store(["a"])
    started = (await http.start(frame, rows_ref, row_count=1)).json()
    await http.commit({**frame, **started})
    ended = next(one for one in http.planning.events() if one.envelope.event_type == "frame.committed")

    late = await http.start(frame, rows_ref, row_count=1)
    (last,) = await http.claim()
    await http.commit(last, row_count=0, output_ref=None)
    assert http.planning.types()[-1] == "playbook.completed"
    after_the_end = await http.start(frame, rows_ref, row_count=1)

    for refused in (late, after_the_end):
        assert (refused.status_code, refused.json()["error"]) == (409, "frame_already_terminal")
        assert refused.json()["terminal_event_id"] == str(ended.envelope.event_id)


async def test_a_frame_of_a_reduce_tells_its_partition_and_whose_output_it_is_cut_from() -> None:
    planning = await Planning().start(REDUCE)
    await planning.run("load", {**ok(), "reference": STORED})
    http = Http(planning)

    (first,) = await http.claim()
    (second,) = await http.claim()

    for index, frame in enumerate((first, second)):
        assert (frame["kind"], frame["rows"], frame["collection"]) == ("reduce", None, None)
        assert frame["sources"] == [{"step": "load", "reference": STORED}]
        assert (frame["cursor"]["start"], frame["cursor"]["total"]) == (index, 2)
        assert (await http.commit(frame)).status_code == 200
    assert planning.types()[-1] == "playbook.completed"
    rows = await begun()
    (of_a_loop,) = await rows.claim()
    assert (of_a_loop["kind"], of_a_loop["sources"]) == ("loop", None)
