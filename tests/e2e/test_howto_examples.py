"""The examples of docs/howto do what their pages say: all of them at the same time, on one stack."""

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
from noetl_testkit.conformance import Came, Case, run_all
from noetl_testkit.local_stack import LocalStack
from noetl_testkit.result_sizes import check_result_sizes

ROOT = Path(__file__).parents[2]
ELSEWHERE = frozenset({"spark", "word_count"})
"""Have tests of their own: a JVM that starts is no good company for examples about time."""
EXAMPLES = sorted(file for file in (ROOT / "examples" / "howto").glob("*.yaml") if file.stem not in ELSEWHERE)
PLAYBOOKS = [
    ROOT / "examples" / "playbooks" / f"{name}.yaml" for name in ("conditional", "failing", "hello_world", "two_steps")
]
"""Have tests of their own; here only their events are looked at."""
CLIENT_SECRET = "a-client-secret-of-the-shop"
TOKEN = "the-access-token-of-the-shop"

EXPECTED: Mapping[str, Mapping[str, Any]] = {
    "branches": {"close": {"reviewed": True, "notified": True}},
    "child": {"load": {"region": "nowhere", "orders": 7}},
    "children": {"report": {"region": "north", "orders": 5, "status": "completed"}},
    "enrich": {"done": {"found": {"customers": 120, "score": 840}, "processed": 120}},
    "errors": {"report": {"failed": "no such order", "attempts": 3}, "clean_up": {"cleaned": True}},
    "http_api": {"total": {"count": 5, "amount": 15}},
    "keychain": {"name": {"owner": "Ada"}},
    "large_results": {
        "alarm": {"sensor": "roof", "rows": 20000, "columns": ["id", "level"], "first": 0, "alarms": 200},
        "last": {"id": 19999, "level": 99},
    },
    "loop": {
        "report": {"cities": ["Oslo", "Rome", "Lima"], "letters": 12, "total": 3, "success": 3, "failed": 0},
    },
    "pipeline": {"done": [{"name": "ada", "n": 8}, {"name": "bob", "n": 4}]},
    "poll": {"done": {"asked": 3}},
    "postgres": {"report": {"people": 2, "last": "Bob"}},
    "streams": {"report": {"rows": 2500, "chunks": 3, "loaded": 2500}},
    "timeouts": {"fallback": {"instead": "yesterday", "because": "TIMEOUT"}},
    "variables": {"greet": {"text": "Hello Ada, 5 numbers"}},
    "workbook": {"both": [119.0, 125.0]},
}
PAYLOADS: Mapping[str, Mapping[str, Any]] = {"variables": {"who": "Ada", "limits": {"low": 1, "high": 5}}}


class Shop(BaseHTTPRequestHandler):
    """An API with pages, that is not there the first time, and an account that takes a token."""

    was_asked = False

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/account":
            known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            self._answer(200 if known else 401, {"owner": "Ada", "token": TOKEN} if known else {})
        elif address.path.startswith("/customers/"):
            number = int(address.path.rpartition("/")[2])
            self._answer(200, {"score": 7, "name": f"customer {number}"})
        elif not Shop.was_asked:
            Shop.was_asked = True
            self._answer(503, {"message": "come back later"})
        else:
            first = (int(parse_qs(address.query)["page"][0]) - 1) * 2
            self._answer(200, {"orders": [{"amount": n + 1} for n in range(first, min(first + 2, 5))]})

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        knows = body.get("client_secret") == [CLIENT_SECRET]
        self._answer(200 if knows else 401, {"access_token": TOKEN, "expires_in": 3600} if knows else {})

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the library
        """Says nothing."""


@contextmanager
def shop() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def outcomes(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Came | BaseException]:
    folder = tmp_path_factory.mktemp("credentials")
    credentials = {
        "shop_db": ("postgres", {"dsn": stack.owner_dsn}),
        "shop_client": ("generic", {"client_id": "shop", "client_secret": CLIENT_SECRET}),
    }
    for name, (kind, data) in credentials.items():
        (folder / name).write_text(json.dumps(data))
        put = stack.noetl("credential", "put", name, "--type", kind, "--data-file", str(folder / name))
        assert put.code == 0, put
    assert stack.noetl("register", str(ROOT / "examples" / "howto" / "child.yaml")).code == 0
    with shop() as url:
        cases = [
            Case(
                name=file.stem,
                rule="",
                document=file.read_text("utf-8"),
                expect={},
                payload={"api": url, **PAYLOADS.get(file.stem, {})},
            )
            for file in [*EXAMPLES, *PLAYBOOKS]
        ]
        return asyncio.run(run_all(cases, stack.endpoint, stack.home.root / "payloads"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_does_what_its_page_says(file: Path, outcomes: Mapping[str, Came | BaseException]) -> None:
    came = outcomes[file.stem]

    assert isinstance(came, Came), repr(came)
    assert not came.problems
    assert came.state is not None
    assert (came.state.execution.status.value, came.state.execution.error) == ("COMPLETED", None)
    assert {step: came.results[step] for step in EXPECTED[file.stem]} == EXPECTED[file.stem]


@pytest.mark.parametrize("file", [*EXAMPLES, *PLAYBOOKS], ids=lambda file: file.stem)
def test_what_events_tell_of_results_is_small(file: Path, outcomes: Mapping[str, Came | BaseException]) -> None:
    came = outcomes[file.stem]

    assert isinstance(came, Came), repr(came)
    check_result_sizes(event.envelope.result for event in came.events)


def test_no_secret_of_the_keychain_is_in_any_event_or_result(outcomes: Mapping[str, Came | BaseException]) -> None:
    came = outcomes["keychain"]

    assert isinstance(came, Came)
    written = json.dumps([event.envelope.meta for event in came.events]) + json.dumps(came.results)
    assert "Ada" in written
    assert TOKEN not in written
    assert CLIENT_SECRET not in written


def test_every_page_has_its_example_and_every_example_its_page() -> None:
    pages = "".join(page.read_text("utf-8") for page in sorted((ROOT / "docs" / "howto").glob("*.md")))

    assert {file.stem for file in EXAMPLES} == EXPECTED.keys()
    assert all(f"(../../examples/howto/{name}.yaml)" in pages for name in (*EXPECTED, *ELSEWHERE))
