"""http steps against a real server: what is sent, what comes back, and every way in which it fails."""

import asyncio
import base64
import gzip
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from noetl_core.canonical import JsonValue
from noetl_servicekit.env import Address
from noetl_servicekit.http_server import serve_http
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.http import HttpTool
from noetl_worker.tools.http_clients import HttpClients, HttpLimits
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

TOKEN = "a-token-that-nobody-may-see"


class Server:
    """An application that tells what it was asked, and does other things that servers do."""

    def __init__(self) -> None:
        self.url = ""
        self.other_url = ""
        self.asked: list[dict[str, Any]] = []
        self.began = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.release = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/echo", self.echo, methods=["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]),
                Route("/status/{code:int}", self.status, methods=["GET", "POST"]),
                Route("/slow", self.slow),
                Route("/big", self.big),
                Route("/bytes", self.some_bytes),
                Route("/cookie", self.cookie),
                Route("/to", self.redirect, methods=["GET", "POST"]),
                Route("/broken-gzip", self.broken_gzip),
                Route("/gzip", self.gzipped),
                Route("/round", self.round),
            ]
        )

    async def echo(self, request: Request) -> Response:
        asked = {
            "method": request.method,
            "path": request.url.path,
            "query": request.url.query,
            "headers": dict(request.headers),
            "body": (await request.body()).decode(),
        }
        self.asked.append(asked)
        return JSONResponse(asked)

    async def status(self, request: Request) -> Response:
        code = request.path_params["code"]
        if code == 204:
            return Response(status_code=204)
        return JSONResponse({"message": f"said {code}"}, status_code=code, headers={"Retry-After": "7"})

    async def slow(self, request: Request) -> Response:
        self.began.set()
        release = asyncio.create_task(self.release.wait())
        while not release.done():
            if await request.is_disconnected():
                self.hung_up.set()
                break
            await asyncio.wait({release}, timeout=0.01)
        release.cancel()
        return PlainTextResponse("at last")

    async def big(self, request: Request) -> Response:
        return PlainTextResponse("x" * 100_000)

    async def some_bytes(self, request: Request) -> Response:
        kind = request.query_params["type"]
        return Response(base64.b64decode(request.query_params["data"]), media_type=kind)

    async def cookie(self, request: Request) -> Response:
        response = JSONResponse({"cookies": request.cookies})
        response.set_cookie("session", "of-one-call")
        return response

    async def redirect(self, request: Request) -> Response:
        code = int(request.query_params.get("code", "302"))
        return RedirectResponse(request.query_params["url"], status_code=code)

    async def broken_gzip(self, request: Request) -> Response:
        return Response(b"no gzip", headers={"Content-Encoding": "gzip"})

    async def gzipped(self, request: Request) -> Response:
        return Response(gzip.compress(b"0" * 3_000_000), headers={"Content-Encoding": "gzip"}, media_type="text/plain")

    async def round(self, request: Request) -> Response:
        return RedirectResponse("/round")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    anywhere = Address(host="127.0.0.1", port=0)
    async with serve_http(one.app, anywhere) as address, serve_http(one.app, anywhere) as other:
        one.url, one.other_url = f"http://{address}", f"http://{other}"
        yield one
        one.release.set()


@pytest.fixture
def credentials() -> InMemoryToolCredentials:
    stored = InMemoryToolCredentials()
    stored.add("bearer", "bearer", {"token": TOKEN})
    stored.add("basic", "basic", {"username": "ada", "password": "correct horse"})
    stored.add("key", "api_key", {"api_key": TOKEN, "header": "X-Shop-Key"})
    stored.add("query_key", "api_key", {"value": TOKEN, "in": "query", "param": "appid"})
    stored.add("odd", "snowflake", {"account": "x"})
    stored.add("empty", "bearer", {"token": ""})
    return stored


@pytest.fixture
async def tool(credentials: InMemoryToolCredentials) -> AsyncIterator[HttpTool]:
    async with HttpClients(HttpLimits(max_response_bytes=50_000, max_redirects=3)) as clients:
        yield HttpTool(clients, credentials)


def call(
    config: Mapping[str, JsonValue],
    *,
    auth: JsonValue = None,
    inputs: Mapping[str, JsonValue] | None = None,
    timeout_seconds: float | None = 20.0,
    **names: object,
) -> ToolCall:
    return ToolCall(
        tenant_id="default",
        organization_id="default",
        execution_id=1,
        step="s",
        kind="http",
        config=config,
        auth=auth,
        input=inputs or {},
        names={"idempotency_key": "key-1", **names},
        timeout_seconds=timeout_seconds,
    )


def data(outcome: Outcome) -> dict[str, Any]:
    assert outcome.error is None, outcome.error
    assert isinstance(outcome.data, dict)
    return outcome.data


def failure(outcome: Outcome) -> tuple[ErrorKind, str, bool]:
    assert outcome.error is not None, outcome.data
    return outcome.error.kind, outcome.error.code, outcome.error.retryable


# --- what is sent and what comes back -----------------------------------------------------------------------


async def test_a_response_is_the_result(server: Server, tool: HttpTool) -> None:
    outcome = await tool.run(call({"url": f"{server.url}/echo?a=1", "params": {"b": True, "c": None, "d": [1, 2]}}))

    result = data(outcome)
    assert list(result) == ["status_code", "headers", "url", "elapsed", "data", "body"]
    assert result["status_code"] == 200
    assert result["headers"]["content-type"] == "application/json"
    assert result["url"] == f"{server.url}/echo?a=1&b=true&d=1&d=2"
    assert result["elapsed"] >= 0
    assert result["data"] == result["body"]
    assert result["data"]["query"] == "a=1&b=true&d=1&d=2"
    assert outcome.http == {"status": 200, "headers": result["headers"]}
    assert outcome.envelope()["http"] == outcome.http


async def test_everything_is_a_template_and_inputs_are_names(server: Server, tool: HttpTool) -> None:
    config: dict[str, JsonValue] = {
        "endpoint": "{{ api }}/echo",
        "method": "{{ how }}",
        "headers": {"X-Page": "{{ page }}"},
        "json": {"items": "{{ items }}"},
    }

    asked = data(await tool.run(call(config, inputs={"how": "post"}, api=server.url, page=3, items=[1, 2])))["data"]

    assert (asked["method"], asked["headers"]["x-page"], json.loads(asked["body"])) == ("POST", "3", {"items": [1, 2]})


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        ({"json": {"a": None}}, ("application/json", '{"a":null}', "")),
        ({"payload": [1]}, ("application/json", "[1]", "")),
        ({"payload": '{"a": 1}'}, ("application/json", '{"a": 1}', "")),
        ({"json": "text"}, ("application/json", '"text"', "")),
        ({"body": "plain é"}, (None, "plain é", "")),
        ({"body": {"a": 1}}, ("application/json", '{"a":1}', "")),
        ({"form": {"a": "x y", "b": True}}, ("application/x-www-form-urlencoded", "a=x+y&b=true", "")),
        ({"data": {"a": 1}}, ("application/json", '{"a":1}', "")),
        ({"data": {"query": {"q": "x"}, "body": {"a": 1}}}, ("application/json", '{"a":1}', "q=x")),
        ({"data": {"query": {"q": "x"}}}, (None, "", "q=x")),
        (
            {"data": {"a": 1}, "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
            ("application/x-www-form-urlencoded", "a=1", ""),
        ),
        ({"body": "<a/>", "headers": {"content-type": "text/xml"}}, ("text/xml", "<a/>", "")),
        ({}, (None, "", "")),
    ],
)
async def test_the_forms_of_a_body(
    server: Server, tool: HttpTool, config: dict[str, JsonValue], sent: tuple[str | None, str, str]
) -> None:
    asked = data(await tool.run(call({"url": f"{server.url}/echo", "method": "POST", **config})))["data"]

    assert (asked["headers"].get("content-type"), asked["body"], asked["query"]) == sent


async def test_data_of_a_get_is_its_query(server: Server, tool: HttpTool) -> None:
    asked = data(await tool.run(call({"url": f"{server.url}/echo", "data": {"a": 1}})))["data"]

    assert (asked["query"], asked["body"]) == ("a=1", "")


async def test_all_but_get_have_an_idempotency_key(server: Server, tool: HttpTool) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        await tool.run(call({"url": f"{server.url}/echo", "method": method}))
    await tool.run(call({"url": f"{server.url}/echo"}))
    own: JsonValue = {"idempotency-key": "mine"}
    await tool.run(call({"url": f"{server.url}/echo", "method": "POST", "headers": own}))

    keys = [asked["headers"].get("idempotency-key") for asked in server.asked]
    assert keys == ["key-1"] * 4 + [None, "mine"]


@pytest.mark.parametrize(
    ("media_type", "content", "expected"),
    [
        ("application/json", b'{"a": 12345678901234567890}', {"a": "12345678901234567890"}),
        ("application/vnd.x+json", b"3", 3),
        ("application/json", b"{broken", "{broken"),
        ("application/json", b"", ""),
        ("application/json", b'{"a": NaN}', '{"a": NaN}'),
        ("text/plain", b"[1, 2]", [1, 2]),
        ("text/plain", b"123", "123"),
        ("text/plain; charset=latin-1", b"\xe9", "é"),
        ("text/plain; charset=klingon", b"x", "x"),
        ("text/plain; charset=undefined", b"x", "x"),
        ("application/octet-stream", b"\xff\x00", "\ufffd\x00"),
    ],
)
async def test_a_body_is_its_json_or_its_text(
    server: Server, tool: HttpTool, media_type: str, content: bytes, expected: JsonValue
) -> None:
    params: JsonValue = {"type": media_type, "data": base64.b64encode(content).decode()}

    assert data(await tool.run(call({"url": f"{server.url}/bytes", "params": params})))["body"] == expected


async def test_cookies_of_one_call_are_not_sent_by_the_next(server: Server, tool: HttpTool) -> None:
    await tool.run(call({"url": f"{server.url}/cookie"}))

    assert data(await tool.run(call({"url": f"{server.url}/cookie"})))["data"] == {"cookies": {}}


async def test_many_calls_share_few_connections(server: Server, tool: HttpTool) -> None:
    outcomes = await asyncio.gather(*(tool.run(call({"url": f"{server.url}/echo"})) for _ in range(60)))

    assert {outcome.status for outcome in outcomes} == {"ok"}


# --- credentials --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ("bearer", "authorization", f"Bearer {TOKEN}"),
        ({"type": "bearer", "token": "{{ keychain.api.token }}"}, "authorization", "Bearer from-the-keychain"),
        ("basic", "authorization", "Basic YWRhOmNvcnJlY3QgaG9yc2U="),
        ("key", "x-shop-key", TOKEN),
        ({"type": "api_key", "key": "bearer"}, "x-api-key", TOKEN),
        ({"api": {"type": "bearer", "key": "bearer"}}, "authorization", f"Bearer {TOKEN}"),
    ],
)
async def test_credentials_are_shown_to_the_server_and_to_nobody_else(
    server: Server, tool: HttpTool, auth: JsonValue, header: str, value: str
) -> None:
    keychain = {"api": {"token": "from-the-keychain"}}

    outcome = await tool.run(call({"url": f"{server.url}/echo"}, auth=auth, keychain=keychain))

    assert server.asked[-1]["headers"][header] == value
    assert value not in json.dumps(outcome.data)
    assert value.rsplit(maxsplit=1)[-1] not in json.dumps(outcome.envelope())


async def test_a_key_in_the_query_is_not_in_the_result(server: Server, tool: HttpTool) -> None:
    result = data(await tool.run(call({"url": f"{server.url}/echo?q=x"}, auth="query_key")))

    assert server.asked[-1]["query"] == f"q=x&appid={TOKEN}"
    assert TOKEN not in json.dumps(result)


async def test_a_password_in_the_address_is_used_and_not_shown(server: Server, tool: HttpTool) -> None:
    address = server.url.replace("//", "//ada:correct-horse@")

    result = data(await tool.run(call({"url": f"{address}/echo"})))

    assert server.asked[-1]["headers"]["authorization"] == "Basic " + base64.b64encode(b"ada:correct-horse").decode()
    assert result["url"] == f"{server.url}/echo"
    assert "correct-horse" not in json.dumps(result)


@pytest.mark.parametrize(
    ("auth", "code"),
    [
        ("nobody", "CREDENTIAL_NOT_FOUND"),
        ("odd", "CREDENTIAL_UNFIT"),
        ("empty", "CREDENTIAL_UNFIT"),
        ({"type": "bearer", "token": "line\nbreak"}, "CREDENTIAL_UNFIT"),
        (["bearer"], "AUTH_INVALID"),
    ],
)
async def test_without_its_credential_nothing_is_sent(
    server: Server, tool: HttpTool, auth: JsonValue, code: str
) -> None:
    outcome = await tool.run(call({"url": f"{server.url}/echo"}, auth=auth))

    assert failure(outcome) == (ErrorKind.AUTH, code, False)
    assert server.asked == []


async def test_credentials_that_cannot_be_fetched_now_may_be_later(
    tool: HttpTool, credentials: InMemoryToolCredentials
) -> None:
    credentials.is_away = True

    outcome = await tool.run(call({"url": "http://127.0.0.1:1/"}, auth="bearer"))

    assert failure(outcome) == (ErrorKind.CONNECTION, "CREDENTIALS_UNAVAILABLE", True)


# --- redirects ----------------------------------------------------------------------------------------------


async def test_a_redirect_is_followed_only_if_the_step_says_so(server: Server, tool: HttpTool) -> None:
    config: dict[str, JsonValue] = {"url": f"{server.url}/to", "params": {"url": f"{server.url}/echo"}}

    assert failure(await tool.run(call(config))) == (ErrorKind.CLIENT_ERROR, "HTTP_302", False)
    assert data(await tool.run(call({**config, "follow_redirects": "true"})))["url"] == f"{server.url}/echo"


@pytest.mark.parametrize("auth", ["bearer", "key", "basic"])
async def test_credentials_stay_with_their_origin(server: Server, tool: HttpTool, auth: str) -> None:
    config: dict[str, JsonValue] = {
        "url": f"{server.url}/to",
        "headers": {"X-Auth-Token": "another-secret", "X-Plain": "p"},
        "follow_redirects": True,
    }

    await tool.run(call({**config, "params": {"url": f"{server.url}/echo"}}, auth=auth))
    await tool.run(call({**config, "params": {"url": f"{server.other_url}/echo"}}, auth=auth))

    same, other = (asked["headers"] for asked in server.asked)
    name = "x-shop-key" if auth == "key" else "authorization"
    assert name in same
    assert same["x-auth-token"] == "another-secret"
    assert name not in other
    assert "x-auth-token" not in other
    assert other["x-plain"] == "p"
    assert other["host"] == server.other_url.removeprefix("http://")


async def test_a_body_goes_along_where_it_must_and_no_secret_with_it(server: Server, tool: HttpTool) -> None:
    config: dict[str, JsonValue] = {
        "url": f"{server.url}/to",
        "method": "POST",
        "params": {"code": "307", "url": f"{server.other_url}/echo"},
        "follow_redirects": True,
    }
    keychain = {"api": {"client_secret": TOKEN}}

    open_body = await tool.run(call({**config, "json": {"a": 1}}, keychain=keychain))
    secret_body = await tool.run(call({**config, "json": {"s": "{{ keychain.api.client_secret }}"}}, keychain=keychain))

    assert data(open_body)["data"]["body"] == '{"a":1}'
    assert failure(secret_body) == (ErrorKind.CLIENT_ERROR, "HTTP_REDIRECT_REFUSED", False)
    assert len(server.asked) == 1


async def test_a_see_other_is_a_get_without_the_body(server: Server, tool: HttpTool) -> None:
    config: dict[str, JsonValue] = {
        "url": f"{server.url}/to",
        "method": "POST",
        "params": {"code": "303", "url": f"{server.url}/echo"},
        "json": {"a": 1},
        "follow_redirects": True,
    }

    asked = data(await tool.run(call(config)))["data"]

    assert (asked["method"], asked["body"]) == ("GET", "")


async def test_redirects_without_end_are_an_error(server: Server, tool: HttpTool) -> None:
    outcome = await tool.run(call({"url": f"{server.url}/round", "follow_redirects": True}))

    assert failure(outcome) == (ErrorKind.CLIENT_ERROR, "HTTP_REDIRECT_REFUSED", False)


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (400, ErrorKind.CLIENT_ERROR, False),
        (401, ErrorKind.AUTH, False),
        (403, ErrorKind.AUTH, False),
        (404, ErrorKind.NOT_FOUND, False),
        (418, ErrorKind.CLIENT_ERROR, False),
        (429, ErrorKind.RATE_LIMIT, True),
        (500, ErrorKind.SERVER_ERROR, True),
        (503, ErrorKind.SERVER_ERROR, True),
        (599, ErrorKind.SERVER_ERROR, True),
    ],
)
async def test_a_status_that_is_no_success_is_an_error_that_keeps_the_response(
    server: Server, tool: HttpTool, code: int, kind: ErrorKind, retryable: bool
) -> None:
    outcome = await tool.run(call({"url": f"{server.url}/status/{code}"}))

    assert failure(outcome) == (kind, f"HTTP_{code}", retryable)
    assert outcome.error is not None
    assert outcome.error.message.endswith(f"said {code}")
    assert outcome.error.to_json()["status"] == outcome.error.to_json()["status_code"] == code
    assert isinstance(outcome.data, dict)
    assert outcome.data["data"] == {"message": f"said {code}"}
    assert outcome.http is not None
    assert outcome.http["status"] == code
    result = outcome.result()
    assert isinstance(result, dict)
    assert (result["status_code"], result["status"]) == (code, "error")


@pytest.mark.parametrize("code", [200, 201, 202, 204, 206])
async def test_every_2xx_is_a_success(server: Server, tool: HttpTool, code: int) -> None:
    assert (await tool.run(call({"url": f"{server.url}/status/{code}"}))).status == "ok"


async def test_nobody_listening_is_a_connection_error(tool: HttpTool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        outcome = await tool.run(call({"url": f"http://127.0.0.1:{port}/"}))

    assert failure(outcome) == (ErrorKind.CONNECTION, "CONN_REFUSED", True)
    assert outcome.data is None


async def test_an_unknown_name_is_a_dns_error(tool: HttpTool) -> None:
    outcome = await tool.run(call({"url": "http://no-such-host.invalid/"}))

    assert failure(outcome) == (ErrorKind.CONNECTION, "DNS_ERROR", True)


async def test_a_server_without_tls_is_a_tls_error(server: Server, tool: HttpTool) -> None:
    outcome = await tool.run(call({"url": server.url.replace("http:", "https:")}))

    assert failure(outcome) == (ErrorKind.CONNECTION, "TLS_ERROR", False)


@pytest.mark.parametrize("config", [{"timeout_seconds": 0.1}, {"timeout_seconds": "{{ 0.1 }}"}])
async def test_a_slow_server_is_a_timeout_and_is_hung_up_on(
    server: Server, tool: HttpTool, config: dict[str, JsonValue]
) -> None:
    outcome = await tool.run(call({"url": f"{server.url}/slow", **config}))

    assert failure(outcome) == (ErrorKind.TIMEOUT, "TIMEOUT", True)
    await asyncio.wait_for(server.hung_up.wait(), 60)


async def test_the_steps_own_timeout_counts_too(server: Server, tool: HttpTool) -> None:
    config: dict[str, JsonValue] = {"url": f"{server.url}/slow", "timeout_seconds": 60}

    assert failure(await tool.run(call(config, timeout_seconds=0.1)))[1] == "TIMEOUT"


async def test_cancelling_a_call_hangs_up(server: Server, tool: HttpTool) -> None:
    running = asyncio.create_task(tool.run(call({"url": f"{server.url}/slow"})))
    await asyncio.wait_for(server.began.wait(), 60)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(server.hung_up.wait(), 60)


@pytest.mark.parametrize("path", ["big", "gzip"])
async def test_a_response_larger_than_allowed_is_not_read(server: Server, tool: HttpTool, path: str) -> None:
    outcome = await tool.run(call({"url": f"{server.url}/{path}"}))

    assert failure(outcome) == (ErrorKind.STORAGE_QUOTA, "RESPONSE_TOO_LARGE", False)
    assert isinstance(outcome.data, dict)
    assert (outcome.data["status_code"], outcome.data["body"]) == (200, None)


async def test_a_response_that_is_not_encoded_as_it_says_cannot_be_read(server: Server, tool: HttpTool) -> None:
    outcome = await tool.run(call({"url": f"{server.url}/broken-gzip"}))

    assert failure(outcome) == (ErrorKind.PARSE, "HTTP_UNDECODABLE", False)


async def test_a_server_that_hangs_up_is_a_lost_connection(tool: HttpTool) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as rude:
        port = rude.sockets[0].getsockname()[1]
        outcome = await tool.run(call({"url": f"http://127.0.0.1:{port}/"}))

    assert failure(outcome) == (ErrorKind.CONNECTION, "CONN_LOST", True)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"url": ""},
        {"url": "{{ nothing }}"},
        {"url": "ftp://host/"},
        {"url": "/relative"},
        {"url": "http://h:port/"},
        {"url": "http://h/", "method": "G E T"},
        {"url": "http://h/", "method": "connect"},
        {"url": "http://h/", "headers": {"Transfer-Encoding": "chunked"}},
        {"url": "http://h/", "params": "a=1"},
        {"url": "http://h/", "headers": {"X": "a\nb"}},
        {"url": "http://h/", "verify_ssl": "maybe"},
        {"url": "http://h/", "timeout_seconds": "soon"},
        {"url": "http://h/", "timeout_seconds": -1},
        {"url": "http://h/", "method": "POST", "form": 3},
    ],
)
async def test_a_request_that_makes_no_sense_is_not_sent(tool: HttpTool, config: dict[str, JsonValue]) -> None:
    assert failure(await tool.run(call(config))) == (ErrorKind.SCHEMA, "TOOL_CONFIG", False)


async def test_a_header_that_cannot_be_written_is_not_shown(server: Server, tool: HttpTool) -> None:
    outcome = await tool.run(call({"url": f"{server.url}/echo", "headers": {"bad name": "a value"}}))

    assert failure(outcome) == (ErrorKind.SCHEMA, "TOOL_CONFIG", False)
    assert "a value" not in str(outcome.error)


async def test_after_the_worker_has_stopped_nothing_is_sent(server: Server) -> None:
    async with HttpClients() as clients:
        tool = HttpTool(clients, InMemoryToolCredentials())

    outcome = await tool.run(call({"url": f"{server.url}/echo"}))

    assert failure(outcome) == (ErrorKind.CONNECTION, "WORKER_STOPPING", True)


async def test_a_large_result_is_parsed_beside_the_event_loop(server: Server) -> None:
    async with HttpClients(HttpLimits()) as clients:
        tool = HttpTool(clients, InMemoryToolCredentials())
        content = json.dumps([{"n": n, "text": "x" * 50} for n in range(8000)]).encode()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(content))
            writer.write(content)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as large:
            port = large.sockets[0].getsockname()[1]
            outcome = await tool.run(call({"url": f"http://127.0.0.1:{port}/"}))

    assert len(data(outcome)["data"]) == 8000
