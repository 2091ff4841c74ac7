"""What tools are given to log in with is found nowhere afterwards: not in the database, a log, the bus or a payload."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

import httpx
import pytest
from noetl_cli.dev.sql import fetch_value
from noetl_testkit.conformance import Came, Case, run_all
from noetl_testkit.local_stack import LocalStack

# Each is given to tools in another way, so that a leak says where it came from.
KEYCHAIN = "keychain/Vu7+Kd'2 \"xq"
PASSWORD = "password-Zw4nTr8pLx"
BASIC = "basic-Hq3mYd6sGf"
HEADER = "header-Jb9kWc5vNr"
SECRETS = (KEYCHAIN, PASSWORD, BASIC, HEADER)
MARK = "said-in-public-Rt6yUj"
"""What is no secret, and must be found: otherwise nothing was looked at."""

SERVICES = ("api", "outbox-publisher", "planner", "projector", "reaper", "worker")
NOWHERE = "127.0.0.1:1"
"""Nobody listens there."""

PRINTS = f"""\
import base64, sys
encoded = base64.b64encode(token.encode()).decode()
print("{MARK}", token, encoded)
print("a password:", token, file=sys.stderr)
"""

# By name: the tool, and whether its call fails.
TOOLS: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "postgres_wrong_password": ({"kind": "postgres", "auth": "leak_wrong_password", "command": "SELECT 1"}, True),
    "postgres_refused": ({"kind": "postgres", "auth": "leak_refused", "command": "SELECT 1"}, True),
    "postgres_own_fields": (
        {
            "kind": "postgres",
            "auth": {
                "type": "postgres",
                "db_host": "127.0.0.1",
                "db_port": 1,
                "db_user": "ada",
                "db_password": "{{ keychain.k.token }}",
                "db_name": "x",
            },
            "command": "SELECT 1",
        },
        True,
    ),
    "http_echo": (
        {"kind": "http", "url": "{{ api }}/ok", "headers": {"X-Key": "{{ keychain.k.api_key }}", "X-Mark": MARK}},
        False,
    ),
    "http_denied": (
        {"kind": "http", "url": "{{ api }}/denied", "headers": {"Authorization": "Bearer {{ keychain.k.api_key }}"}},
        True,
    ),
    "http_basic_denied": ({"kind": "http", "url": "{{ api }}/denied", "auth": "leak_basic"}, True),
    "http_in_query": (
        {"kind": "http", "url": "{{ api }}/denied", "params": {"key": "{{ keychain.k.token }}"}},
        True,
    ),
    "http_refused": (
        {"kind": "http", "url": f"http://{NOWHERE}/x", "headers": {"X-Key": "{{ keychain.k.api_key }}"}},
        True,
    ),
    "python_raises": (
        {"kind": "python", "input": {"token": "{{ keychain.k.token }}"}, "code": PRINTS + "raise ValueError(token)"},
        True,
    ),
    "python_returns": (
        {
            "kind": "python",
            "input": {"token": "{{ keychain.k.token }}"},
            "code": PRINTS + "result = {'plain': token, 'encoded': [encoded], token: 1}",
        },
        False,
    ),
    "python_dies": (
        {
            "kind": "python",
            "input": {"token": "{{ keychain.k.api_key }}"},
            "code": PRINTS + "sys.stdout.flush()\nos._exit(7)",
        },
        True,
    ),
    "shell_fails": (
        {"kind": "shell", "cmds": [f"echo {MARK} '{{{{ keychain.k.api_key }}}}' >&2; exit 3"]},
        True,
    ),
    "duckdb_fails": ({"kind": "duckdb", "command": "SELECT CAST('{{ keychain.k.api_key }}' AS INTEGER)"}, True),
    "nats_refused": (
        {
            "kind": "nats",
            "auth": {"type": "nats", "nats_url": f"nats://ada:{{{{ keychain.k.api_key }}}}@{NOWHERE}"},
            "operation": "kv_get",
            "bucket": "b",
            "key": "k",
        },
        True,
    ),
}


NEVER_REPEATED = {
    *("postgres_wrong_password", "postgres_refused", "postgres_own_fields"),
    *("http_refused", "nats_refused"),
}
"""Calls in whose outcome there was nothing to hide."""


class Echo(BaseHTTPRequestHandler):
    """A server that repeats all that it was told, in its body and in its headers."""

    def do_GET(self) -> None:
        told = dict(self.headers.items())
        body = json.dumps({"message": f"you said {told} at {self.path}", "told": told}).encode()
        self.send_response(401 if self.path.startswith("/denied") else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Told", told.get("X-Key", told.get("Authorization", "")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the library
        """Says nothing."""


@contextmanager
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def put_credential(stack: LocalStack, name: str, kind: str, data: Mapping[str, Any]) -> None:
    response = httpx.post(
        f"{stack.endpoint.http_url}/api/credentials",
        json={"name": name, "type": kind, "data": dict(data)},
        headers={"Authorization": f"Bearer {stack.endpoint.token}"},
        timeout=60.0,
    )
    assert response.is_success, response.text


def playbook(name: str, tool: Mapping[str, Any]) -> str:
    return json.dumps(
        {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": name, "path": f"secrets/{name}"},
            "workload": {"api": ""},
            "keychain": [{"name": "k", "kind": "credential", "credential": "leak_keychain"}],
            "workflow": [{"step": "call", "tool": tool}],
        }
    )


@pytest.fixture(scope="module")
def outcomes(stack: LocalStack) -> Mapping[str, Came | BaseException]:
    port = urlsplit(stack.owner_dsn).port
    wrong = f"postgresql://noetl_api:{PASSWORD}@127.0.0.1:{port}/noetl"
    put_credential(stack, "leak_wrong_password", "postgres", {"dsn": wrong})
    put_credential(stack, "leak_refused", "postgres", {"dsn": f"postgresql://ada:{PASSWORD}@{NOWHERE}/noetl"})
    put_credential(stack, "leak_basic", "basic", {"username": "ada", "password": BASIC})
    put_credential(stack, "leak_keychain", "generic", {"token": KEYCHAIN, "api_key": HEADER})
    with echo() as url:
        cases = [
            Case(name=name, rule="", document=playbook(name, tool), expect={}, payload={"api": url})
            for name, (tool, _) in TOOLS.items()
        ]
        return asyncio.run(run_all(cases, stack.endpoint, stack.home.root / "payloads"))


@pytest.mark.parametrize("name", TOOLS)
def test_a_call_ends_as_it_should_and_shows_no_secret(name: str, outcomes: Mapping[str, Came | BaseException]) -> None:
    came = outcomes[name]

    assert isinstance(came, Came), repr(came)
    assert not came.problems
    assert came.state is not None
    assert came.state.execution.status.value == ("FAILED" if TOOLS[name][1] else "COMPLETED"), came.state.execution
    written = json.dumps(came.results) + json.dumps(came.state.execution.error)
    assert not [form for form in spellings() if form in written]
    assert ("***" in written) == (name not in NEVER_REPEATED), written


def test_no_secret_is_anywhere_in_the_database(stack: LocalStack, outcomes: Mapping[str, Came | BaseException]) -> None:
    query = """
        SELECT array_agg(relname::text ORDER BY relname) FROM pg_class
        WHERE relnamespace = 'noetl'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
    """
    names = fetch_value(stack.owner_dsn, query)

    assert {"event", "outbox", "credential", "execution", "command", "catalog"} <= {*names}
    assert rows_with(stack, "event", ["secrets/postgres_wrong_password"]) > 0
    assert {name: rows_with(stack, name, spellings()) for name in names} == dict.fromkeys(names, 0)


def rows_with(stack: LocalStack, table: str, words: Sequence[str]) -> int:
    """How many rows have one of the words in any column; as text, bytes are hexadecimal."""
    looked_for = [form for word in words for form in (word, word.encode().hex())]
    query = (
        f'SELECT count(*) FROM noetl."{table}" AS t '  # noqa: S608 - a name that the database has told
        "WHERE EXISTS (SELECT FROM unnest($1::text[]) AS word WHERE strpos(t::text, word) > 0)"
    )
    return int(fetch_value(stack.owner_dsn, query, looked_for))


def test_no_secret_is_in_any_file_of_the_stack(stack: LocalStack, outcomes: Mapping[str, Came | BaseException]) -> None:
    forms = [spelling.encode() for spelling in spellings()]
    seen: set[str] = set()
    leaks: list[tuple[str, bytes]] = []
    for name, content in files_of(stack):
        seen.add(name)
        if name.startswith("payloads/") and MARK.encode() in content:
            seen.add(MARK)
        if any(form in content for form in forms):
            leaks += [(name, line[:500]) for line in content.splitlines() if any(form in line for form in forms)]

    assert {MARK, *(f"logs/{service}.log" for service in SERVICES)} <= seen
    assert not leaks


def files_of(stack: LocalStack) -> Iterator[tuple[str, bytes]]:
    """Everything but the database, and its log: here it is a user's too, and may log the statements that it is sent."""
    root = stack.home.root
    for place in ("logs", "nats", "payloads", "run"):
        for folder, _, names in os.walk(root / place):
            for file in (Path(folder) / name for name in names if name != "postgres.log"):
                with contextlib.suppress(FileNotFoundError):  # the services run, and have files that come and go
                    yield str(file.relative_to(root)), file.read_bytes()


def spellings() -> list[str]:
    """Every secret as it is, escaped, and as a part of something longer that was encoded."""
    found: set[str] = set()
    for secret in SECRETS:
        found |= {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
        for before, unsure in ((0, 0), (1, 2), (2, 3)):
            encoded = base64.b64encode(b"." * before + secret.encode()).decode()
            found.add(encoded[unsure:-4])  # without the characters that depend on what stands beside it
    return sorted(found)
