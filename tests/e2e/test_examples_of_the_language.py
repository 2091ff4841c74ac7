"""The examples of the language's specification, word for word, each with data that makes it worth running."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from noetl_cli.dev.sql import execute, fetch_value
from noetl_testkit.conformance import Came, Case, run_all
from noetl_testkit.local_stack import LocalStack
from noetl_testkit.result_sizes import check_result_sizes

EXAMPLES = Path(__file__).parents[2] / "examples" / "language"
NAMES = ("hello", "conditional", "pipeline", "cursor", "sub_playbooks")
"""`word_count` needs Spark, and runs where a session is."""
ORDERS, PAGE = 30_000, 10_000
CUSTOMERS = 120
DATABASE = (
    "CREATE TABLE shop_order (id int PRIMARY KEY, note text)",
    """CREATE PROCEDURE save_orders(orders text) LANGUAGE sql AS $$
       INSERT INTO shop_order SELECT (one->>'id')::int, one->>'note' FROM jsonb_array_elements(orders::jsonb) one $$""",
    "CREATE TABLE customer (id int PRIMARY KEY, score float, owner text)",
    f"INSERT INTO customer (id) SELECT generate_series(1, {CUSTOMERS})",
    """CREATE PROCEDURE save_scores(scores text) LANGUAGE sql AS $$
       UPDATE customer SET score = (one->>'score')::float FROM jsonb_array_elements(scores::jsonb) one
       WHERE id = (one->>'id')::int $$""",
)
READER = (
    "CREATE ROLE playbook_reader LOGIN PASSWORD 'reads-only'",
    "GRANT USAGE ON SCHEMA noetl TO playbook_reader",
    "GRANT SELECT ON noetl.event, noetl.stage, noetl.frame TO playbook_reader",
)
OWN_EVENTS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: own_events}
workflow:
- {step: first, loop: {in: [1, 2]}, tool: {kind: noop, result: "{{ item }}"}, next: {arcs: [{step: look}]}}
- step: look
  tool:
    kind: postgres
    auth: events_db
    command: |
      SELECT event_type, node_id, node_name, status, created_at, result ->> 'status' AS ended, context
      FROM noetl.event WHERE execution_id = {{ execution_id }} AND event_type = 'call.done' ORDER BY stream_version;
      SELECT (SELECT count(*) FROM noetl.stage) + (SELECT count(*) FROM noetl.frame) AS n
"""
CLEARED = (
    "REVOKE ALL ON noetl.event, noetl.stage, noetl.frame FROM playbook_reader",
    "REVOKE ALL ON SCHEMA noetl FROM playbook_reader",
    "DROP ROLE playbook_reader",
    "DROP PROCEDURE save_orders, save_scores",
    "DROP TABLE shop_order, customer",
)


class Api(BaseHTTPRequestHandler):
    """Orders in pages, the first of which cannot be had at once, and scores for customers."""

    was_asked = False

    def do_GET(self) -> None:
        if not Api.was_asked:
            Api.was_asked = True
            return self._answer(503, {})
        first = (int(parse_qs(urlsplit(self.path).query)["page"][0]) - 1) * PAGE
        orders = [{"id": n, "note": "word " * 20} for n in range(first, min(first + PAGE, ORDERS))]
        return self._answer(200, {"orders": orders})

    def do_POST(self) -> None:
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(200, [{"id": row["id"], "score": row["id"] / 2} for row in rows])

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the library
        """Says nothing."""


@contextmanager
def api() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def database(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = urlsplit(stack.owner_dsn)
    reader = address._replace(netloc=f"playbook_reader:reads-only@{address.hostname}:{address.port}").geturl()
    file = tmp_path_factory.mktemp("credentials") / "dsn.json"
    for name, dsn in (("shop_db", stack.owner_dsn), ("crm_db", stack.owner_dsn), ("events_db", reader)):
        file.write_text(json.dumps({"dsn": dsn}))
        put = stack.noetl("credential", "put", name, "--type", "postgres", "--data-file", str(file))
        assert put.code == 0, put
    execute(stack.owner_dsn, *DATABASE, *READER)
    yield stack.owner_dsn
    execute(stack.owner_dsn, *CLEARED)


@pytest.fixture(scope="module")
def outcomes(stack: LocalStack, database: str) -> Mapping[str, Came | BaseException]:
    region = (EXAMPLES / "sub_playbooks_region.yaml").read_text("utf-8")
    with api() as url:
        cases = [
            Case(
                name=name,
                rule="§15",
                document=(EXAMPLES / f"{name}.yaml").read_text("utf-8"),
                expect={},
                others=[region],
                payload={"api": url},
            )
            for name in NAMES
        ]
        cases.append(Case(name="own_events", rule="§13.1", document=OWN_EVENTS, expect={}))
        return asyncio.run(run_all(cases, stack.endpoint, stack.home.root / "payloads"))


def ended(outcomes: Mapping[str, Came | BaseException], name: str) -> Came:
    came = outcomes[name]
    assert isinstance(came, Came), repr(came)
    assert not came.problems
    assert came.state is not None
    assert (came.state.execution.status.value, came.state.execution.error) == ("COMPLETED", None)
    check_result_sizes(event.envelope.result for event in came.events)
    return came


def test_hello_world(outcomes: Mapping[str, Came | BaseException]) -> None:
    assert ended(outcomes, "hello").results == {"greet": "Hello, world"}


def test_conditional_arcs_are_joined(outcomes: Mapping[str, Came | BaseException]) -> None:
    came = ended(outcomes, "conditional")

    entered = [event.envelope.node_name for event in came.events if event.envelope.event_type == "step.enter"]
    assert entered == ["score", "review", "done"]


def test_all_orders_are_saved_although_the_statement_has_megabytes(
    outcomes: Mapping[str, Came | BaseException], database: str
) -> None:
    ended(outcomes, "pipeline")

    assert fetch_value(database, "SELECT count(DISTINCT id) FROM shop_order") == ORDERS
    assert fetch_value(database, "SELECT sum(length(note)) FROM shop_order") > 1_048_576


def test_every_customer_gets_a_score(outcomes: Mapping[str, Came | BaseException], database: str) -> None:
    came = ended(outcomes, "cursor")

    assert fetch_value(database, "SELECT count(*) FROM customer WHERE score = id / 2.0") == CUSTOMERS
    assert {key: came.results["enrich"][key] for key in ("status", "processed", "failed")} == {
        "status": "ok",
        "processed": CUSTOMERS,
        "failed": 0,
    }


def test_a_parallel_loop_over_a_sub_playbook(outcomes: Mapping[str, Came | BaseException]) -> None:
    totals = ended(outcomes, "sub_playbooks").results["report"]["totals"]

    assert [(one["region"], one["orders"], one["status"]) for one in totals] == [
        ("north", 5, "completed"),
        ("south", 5, "completed"),
    ]


def test_a_playbook_reads_its_own_events_by_the_names_of_the_language(
    outcomes: Mapping[str, Came | BaseException],
) -> None:
    looked = ended(outcomes, "own_events").results["look"]["command_0"]

    assert looked["row_count"] == 2
    for row in looked["rows"]:
        assert (row["node_id"], row["node_name"], row["status"], row["ended"]) == ("first", "first", "ok", "ok")
        assert row["created_at"].startswith("20")
        assert row["context"]["command_id"]
        assert row["context"]["loop_event_id"].startswith("loop_")
