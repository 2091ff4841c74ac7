"""The fixtures that requirements name, in small: playbooks of `fixtures/`, all at the same time on one stack."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from noetl_testkit.conformance import Came, Case, run_all
from noetl_testkit.limited_api import ITEMS_A_PAGE, PAGES, Counts, limited_api
from noetl_testkit.local_stack import LocalStack
from noetl_testkit.web_server import web_server
from prometheus_client.parser import text_string_to_metric_families

FOLDER = Path(__file__).parent / "fixtures"
COUNTED = ("rows_40", "rows_400")
"""Run alone, one after the other: what they ask for is counted."""
ELSEWHERE = ("loop_state_recovery", "minio_large_result")
"""Where a worker is killed, and where payloads are in a bucket: `test_loops_survive`, `test_stack_on_object_store`."""
TOGETHER = sorted(file.stem for file in FOLDER.glob("*.yaml") if file.stem not in (*COUNTED, *ELSEWHERE))
FRAMES = 4
REPLICAS, REQUESTS_PER_SECOND = 3, 50
"""Of the API that the flows of patients call."""
Ran = tuple[Mapping[str, Came], Counts]


def run(stack: LocalStack, names: list[str], web: str, **payload: Any) -> Mapping[str, Came]:
    cases = [
        Case(name=name, rule="", document=(FOLDER / f"{name}.yaml").read_text("utf-8"), expect={}, payload=payload)
        for name in names
    ]
    outcomes = asyncio.run(run_all(cases, stack.endpoint, stack.home.root / "payloads", web=web))
    came = {name: one for name, one in outcomes.items() if isinstance(one, Came)}
    assert came.keys() == outcomes.keys(), outcomes
    return came


@pytest.fixture(scope="module")
def database(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("credentials") / "db.json"
    file.write_text(json.dumps({"dsn": stack.owner_dsn}))
    put = stack.noetl("credential", "put", "fixtures_db", "--type", "postgres", "--data-file", str(file))
    assert put.code == 0, put
    return "fixtures_db"


@pytest.fixture(scope="module")
def ran(stack: LocalStack, database: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("volume")
    limits = {"replicas": REPLICAS, "requests_per_second": REQUESTS_PER_SECOND}
    with web_server() as web, limited_api(**limits) as api:
        return run(stack, TOGETHER, web, directory=str(folder), apis=list(api.addresses)), api.counts()


@pytest.fixture
def came(ran: Ran) -> Mapping[str, Came]:
    return ran[0]


def events_of(one: Came) -> Counter[str]:
    return Counter(event.envelope.event_type for event in one.events)


@pytest.mark.parametrize("name", TOGETHER)
def test_every_fixture_completes(name: str, came: Mapping[str, Came]) -> None:
    one = came[name]
    assert not one.problems
    assert one.state is not None
    assert (one.state.execution.status.value, one.state.execution.error) == ("COMPLETED", None)


def test_pft_flow_has_every_patient_of_every_facility_and_kind(came: Mapping[str, Came]) -> None:
    assert came["pft_flow"].results["validate"]["rows"] == [
        {"facility": facility, "kind": kind, "done": 60}
        for facility in (1, 2)
        for kind in ("assessments", "medications")
    ]


def test_what_a_replica_refuses_above_its_rate_is_asked_again_until_every_row_has_one_answer(ran: Ran) -> None:
    _, counts = ran
    flow = {
        f"/patients/{patient}/{kind}?facility={facility}": 1
        for facility in (1, 2)
        for patient in range(1, 61)
        for kind in ("assessments", "medications")
    }
    pages = {
        f"/patients/{patient}/pages" + (f"?after={page}" if page else ""): 1
        for patient in range(12)
        for page in range(PAGES)
    }

    assert len(counts.refused) == REPLICAS
    assert all(counts.refused), "each was above its rate"
    by_frames = counts.answered.pop("/patients/assessments")
    assert dict(counts.answered) == flow | pages
    assert 3 <= by_frames < 60, "a request for each frame"


def test_pft_flow_by_cursor_leaves_no_row_behind_and_claims_frames_not_rows(came: Mapping[str, Came]) -> None:
    one = came["pft_flow_v2"]
    for step in ("assessments", "medications"):
        result = one.results[step]
        assert (result["processed"], result["failed"], result["status"]) == (60, 0, "ok")
    told = events_of(one)
    assert told["stage.opened"] == told["stage.closed"] == 2
    assert told["frame.dispatched"] == told["frame.committed"] < 20, "not one for each of 120 rows"


def test_pages_are_followed_for_every_row(came: Mapping[str, Came]) -> None:
    assert came["pft_page_continuation"].results["sum"] == {"items": 12 * PAGES * ITEMS_A_PAGE, "pages": 12 * PAGES}


def test_five_commands_are_issued_for_five_items_and_five_end_whatever_the_tool(came: Mapping[str, Came]) -> None:
    one = came["tooling_non_blocking"]
    for step in ("with_python", "with_http", "with_postgres", "with_duckdb", "with_shell"):
        told = Counter(event.envelope.event_type for event in one.events if event.envelope.node_name == step)
        issued = told["command.issued"] - told["command.abandoned"]  # Leases are short here: some may be run again.
        assert (issued, told["command.completed"], told["command.failed"]) == (5, 5, 0), step


def test_a_file_on_a_shared_volume_is_read_in_place(came: Mapping[str, Came]) -> None:
    assert came["pvc_worker_exchange"].results["read"]["rows"] == [{"n": 10_000, "total": 29_994}]


def test_a_hundred_shards_end_and_their_fan_in_is_told_once(came: Mapping[str, Came]) -> None:
    told = events_of(came["fanout_basic"])
    assert (told["loop.shard.enqueued"], told["loop.shard.done"], told["loop.fanin.completed"]) == (100, 100, 1)
    assert came["fanout_basic"].results["after"] == 4950


def test_two_of_fifty_items_that_fail_make_a_partial_fan_in_on_which_arcs_route(came: Mapping[str, Came]) -> None:
    one = came["fanout_partial_failure"]
    assert one.results["mend"] == {"failed": 2, "success": 48, "codes": ["HTTP_500", "HTTP_500"]}
    told = events_of(one)
    assert (told["loop.shard.done"], told["loop.shard.failed"], told["loop.fanin.completed"]) == (48, 2, 1)


def test_ten_thousand_rows_come_in_ten_chunks_each_once_and_in_order(came: Mapping[str, Came]) -> None:
    one = came["streaming_chunks"]
    assert one.results["report"] == {"rows": 10_000, "told": 10, "seen": 10_000, "chunks": 10}
    assert events_of(one)["call.partial"] == 10


def test_one_poison_row_in_ten_thousand_stands_alone_and_all_others_are_committed(came: Mapping[str, Came]) -> None:
    one = came["poison_row"]
    assert one.results["report"] == {"success": 9_999, "failed": 1}
    (failed,) = [entry for entry in one.results["work"]["results"] if "error" in entry]
    assert "row 7777 is poison" in failed["error"]["message"]
    assert sum(entry["sum"] for entry in one.results["work"]["results"] if "sum" in entry) == 49_995_000 - 7777


def requests_of(stack: LocalStack) -> Counter[str]:
    """How many calls api and planner have answered, by method, of those that work could cost."""
    ports = json.loads(stack.home.ports_file.read_text(encoding="utf-8"))
    found: Counter[str] = Counter()
    for service in ("api", "planner"):
        text = httpx.get(f"http://127.0.0.1:{ports[f'{service}.ops']}/metrics", timeout=30.0, trust_env=False).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "noetl_grpc_server_handled_total":
                    found[sample.labels["method"].rpartition("/")[2]] += int(sample.value)
    return found


def test_frames_cost_three_events_and_stages_two_and_no_row_an_event_or_a_request(
    stack: LocalStack, database: str
) -> None:
    asked: dict[str, Counter[str]] = {}
    for name, rows in zip(COUNTED, (40, 400), strict=True):
        before = requests_of(stack)
        one = run(stack, [name], "http://127.0.0.1:9")[name]
        asked[name] = requests_of(stack) - before
        assert one.results["after"] == rows
        told = {kind: count for kind, count in events_of(one).items() if kind.startswith(("stage.", "frame."))}
        told.pop("frame.heartbeat", None)  # of a slow machine
        assert told == {
            "stage.opened": 1,
            "stage.closed": 1,
            "frame.dispatched": FRAMES,
            "frame.started": FRAMES,
            "frame.committed": FRAMES,
        }
        assert asked[name]["Resolve"] == FRAMES, "a credential is fetched once for all rows of a frame"
    few, many = (asked[name] for name in COUNTED)
    assert few.keys() | many.keys(), "there are metrics"
    grown = {method: many[method] - few[method] for method in many if many[method] - few[method] > 40}
    assert not grown, "ten times the rows, and hardly another request"
