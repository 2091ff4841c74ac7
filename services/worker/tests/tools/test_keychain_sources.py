"""Where secrets come from: the playbook, stored credentials, a real OAuth 2 server, packages of others."""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from noetl_adapters.secrets.rs256 import sign_rs256
from noetl_core.canonical import JsonValue
from noetl_core.playbook.model import KeychainEntry
from noetl_servicekit.env import Address
from noetl_servicekit.http_server import serve_http
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.keychain import open_keychain
from noetl_worker.tools.keychain_plugins import ENTRY_POINT_GROUP, KeychainEnvironment, Secret, SecretRequest
from noetl_worker.tools.noop import NoopTool
from noetl_worker.tools.registry import ToolRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs

EXAMPLE = Path(__file__).parents[4] / "examples" / "plugins" / "noetl-keychain-files"
CLIENT_SECRET = "a-client-secret-nobody-may-see"


class TokenServer:
    """Gives tokens to those who know the secret."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.answer: Any = {"access_token": "an-access-token", "token_type": "Bearer", "expires_in": 3600}
        self.app = Starlette(routes=[Route("/token", self.token, methods=["GET", "POST"])])

    async def token(self, request: Request) -> Response:
        body = (await request.body()).decode()
        self.asked.append({"method": request.method, "body": body, "headers": dict(request.headers)})
        if CLIENT_SECRET not in body:
            return JSONResponse({"error": f"not {body}"}, status_code=401)
        return JSONResponse(self.answer)


@pytest.fixture
async def server() -> AsyncIterator[TokenServer]:
    made = TokenServer()
    async with serve_http(made.app, Address(host="127.0.0.1", port=0)) as listening:
        made.url = f"http://{listening.host}:{listening.port}/token"
        yield made


@pytest.fixture
def credentials() -> InMemoryToolCredentials:
    stored = InMemoryToolCredentials()
    stored.add("shop", "api_key", {"api_key": "the-key-of-the-shop", "user": "ada"})
    return stored


async def resolved(
    kind: str,
    config: dict[str, Any],
    credentials: InMemoryToolCredentials | None = None,
    plugins: tuple[EntryPoint, ...] = (),
    variables: dict[str, str] | None = None,
) -> JsonValue:
    """The fields of an entry, or the reason why there are none."""
    one = ToolCall(
        tenant_id="default", organization_id="default", execution_id=1, step="s", kind="noop", config={"x": "{{ e }}"}
    )
    stored = credentials or InMemoryToolCredentials()
    async with open_keychain(
        credentials=stored, variables=variables or {}, plugins=plugins, sign=sign_rs256
    ) as keychain:
        with capture_logs() as logs:
            opened = await keychain.opened_for(one, {"e": KeychainEntry(name="e", kind=kind, config=config)})
    reasons = [log["reason"] for log in logs if log["event"] == "worker.keychain_unresolved"]
    return reasons[0] if reasons else opened.keychain["e"]


async def test_static_fields_and_a_token_are_as_they_are_written() -> None:
    assert await resolved("static", {"map": {"a": 1, "b": {"c": "d"}}}) == {"a": 1, "b": {"c": "d"}}
    assert await resolved("static", {}) == "`map` has no fields"
    assert await resolved("bearer", {"token": "t"}) == {"token": "t", "access_token": "t"}
    assert await resolved("bearer", {"token": "{{ nowhere }}"}) == "`token` is empty"


async def test_a_credential_gives_its_data(credentials: InMemoryToolCredentials) -> None:
    assert await resolved("credential", {"credential": "shop"}, credentials) == {
        "api_key": "the-key-of-the-shop",
        "user": "ada",
    }
    assert await resolved("credential", {"credential": "other"}, credentials) == "credential 'other' does not exist"
    assert await resolved("credential", {}, credentials) == "`credential` names no credential"


async def test_secrets_choose_fields_of_a_credential(credentials: InMemoryToolCredentials) -> None:
    config = {"auth": "shop", "map": {"key": "api_key"}}

    assert await resolved("secrets", config, credentials) == {"key": "the-key-of-the-shop"}
    assert await resolved("secrets", {"auth": {"key": "shop"}}, credentials) == {
        "api_key": "the-key-of-the-shop",
        "user": "ada",
    }
    config = {"auth": "shop", "map": {"key": "nope"}}
    assert await resolved("secrets", config, credentials) == "the credential has no field 'nope'"


@pytest.mark.parametrize(
    ("kind", "config", "name"),
    [
        ("secret_manager", {"provider": "gcp", "map": {"a": "path"}}, "gcp"),
        ("secrets", {"provider": "aws"}, "aws"),
    ],
)
async def test_clouds_need_a_package(kind: str, config: dict[str, Any], name: str) -> None:
    reason = f"no package of this worker provides {name!r} (entry point group noetl.keychain)"
    assert await resolved(kind, config) == reason


async def test_oauth2_sends_a_form_and_gives_the_answer(server: TokenServer) -> None:
    data = {"grant_type": "client_credentials", "client_secret": CLIENT_SECRET}

    fields = await resolved("oauth2", {"endpoint": server.url, "data": data})

    assert fields == server.answer
    (asked,) = server.asked
    assert asked["method"] == "POST"
    assert asked["body"] == f"grant_type=client_credentials&client_secret={CLIENT_SECRET}"
    assert asked["headers"]["content-type"] == "application/x-www-form-urlencoded"
    assert "idempotency-key" not in asked["headers"]


async def test_oauth2_sends_json_where_the_headers_say_so(server: TokenServer) -> None:
    config = {
        "endpoint": server.url,
        "headers": {"content-type": "application/json"},
        "data": {"client_secret": CLIENT_SECRET, "nested": {"a": 1}},
    }
    assert await resolved("oauth2", config) == server.answer
    assert json.loads(server.asked[0]["body"])["nested"] == {"a": 1}


async def test_what_an_oauth2_server_refuses_is_told_without_what_it_repeats(server: TokenServer) -> None:
    assert await resolved("oauth2", {"endpoint": server.url, "data": {"client_secret": "guessed"}}) == (
        "the server answered HTTP 401"
    )
    server.answer = {"error": "x"}
    data = {"client_secret": CLIENT_SECRET}
    reason = "the answer of the server has no access_token"
    assert await resolved("oauth2", {"endpoint": server.url, "data": data}) == reason
    assert "`url` must be" in str(await resolved("oauth2", {"endpoint": "ftp://x", "data": data}))
    assert await resolved("oauth2", {"data": data}) == "a oauth2 step needs `url`"


class Vault:
    """A package's source."""

    def __init__(self, environment: KeychainEnvironment) -> None:
        self._settings = environment.settings

    async def resolve(self, request: SecretRequest) -> Secret:
        if request.config.get("map") is None:
            raise RuntimeError("with a secret in its text")
        return Secret(fields={"at": self._settings["address"]}, lives_seconds=5)


def no_source(environment: KeychainEnvironment) -> object:
    return object()


def plugin(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=f"{__name__}:{value}", group=ENTRY_POINT_GROUP)


async def test_a_package_can_provide_a_source() -> None:
    plugins = (plugin("vault", "Vault"), plugin("vault", "Vault"), plugin("gcp", "no_source"))
    variables = {"NOETL_KEYCHAIN_VAULT_ADDRESS": "here", "NOETL_TOKEN": "ours"}

    config: dict[str, Any] = {"provider": "vault", "map": {"a": "b"}}
    assert await resolved("secret_manager", config, plugins=plugins, variables=variables) == {"at": "here"}
    del config["map"]
    reason = "failed with RuntimeError"
    assert str(await resolved("secret_manager", config, plugins=plugins, variables=variables)).endswith(reason)
    config["provider"] = "gcp"
    assert "no package" in str(await resolved("secret_manager", config, plugins=plugins, variables=variables))


async def test_the_worked_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    ((name, value),) = project["entry-points"][ENTRY_POINT_GROUP].items()
    plugins = (EntryPoint(name=name, value=value, group=ENTRY_POINT_GROUP),)
    variables = {"NOETL_KEYCHAIN_FILES_ROOT": str(tmp_path)}
    (tmp_path / "default" / "default" / "shop").mkdir(parents=True)
    (tmp_path / "default" / "default" / "shop" / "api_key").write_text("the key\n")
    (tmp_path / "default" / "other").write_text("of another organization")

    async def read(place: str) -> JsonValue:
        config = {"provider": "files", "map": {"key": place}}
        return await resolved("secret_manager", config, plugins=plugins, variables=variables)

    assert await read("shop/api_key") == {"key": "the key"}
    assert await read("shop/nothing") == "there is no file 'shop/nothing'"
    assert await read("../other") == "'../other' is not a file of this organization"


@asynccontextmanager
async def opened(config: dict[str, Any], entry: KeychainEntry) -> AsyncIterator[ToolCall]:
    one = ToolCall(tenant_id="t", organization_id="o", execution_id=1, step="s", kind="noop", config=config)
    async with open_keychain(credentials=InMemoryToolCredentials(), variables={}, plugins=()) as keychain:
        yield await keychain.opened_for(one, {entry.name: entry})


async def test_no_result_keeps_a_secret_whoever_put_it_there() -> None:
    entry = KeychainEntry(name="e", kind="static", config={"map": {"pin": "9876", "token": "a-token-of-some-length"}})
    config = {"result": {"a": "{{ e.pin }}", "b": "Bearer {{ e.token }}", "c": ["{{ e }}"], "d": "98765"}}
    async with opened(config, entry) as call:
        outcome: Outcome = await ToolRegistry({"noop": NoopTool()}).run(call)

    assert outcome.data == {"a": "***", "b": "Bearer ***", "c": [{"pin": "***", "token": "***"}], "d": "98765"}
