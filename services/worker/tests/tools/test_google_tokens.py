"""Tokens for the key of a service account, from a server that checks what it is sent."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from noetl_adapters.secrets.rs256 import sign_rs256
from noetl_core.canonical import JsonObject
from noetl_core.playbook.model import KeychainEntry
from noetl_servicekit.env import Address
from noetl_servicekit.http_server import serve_http
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.google_tokens import DEFAULT_CREDENTIAL, DEFAULT_SCOPE, GRANT
from noetl_worker.tools.keychain import open_keychain
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


class Google:
    """Gives a token for a claim that the key has signed."""

    def __init__(self) -> None:
        self.url = ""
        self.claims: list[dict[str, Any]] = []
        self.app = Starlette(routes=[Route("/token", self.token, methods=["POST"])])

    async def token(self, request: Request) -> Response:
        form = parse_qs((await request.body()).decode())
        assert form["grant_type"] == [GRANT]
        head, claim, signature = form["assertion"][0].split(".")
        KEY.public_key().verify(decoded(signature), f"{head}.{claim}".encode(), padding.PKCS1v15(), SHA256())
        assert json.loads(decoded(head)) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
        self.claims.append(json.loads(decoded(claim)))
        if "target_audience" in self.claims[-1]:
            return JSONResponse({"id_token": "an-identity"})
        return JSONResponse({"access_token": "an-access-token", "expires_in": 3599, "token_type": "Bearer"})


@pytest.fixture
async def google() -> AsyncIterator[Google]:
    made = Google()
    async with serve_http(made.app, Address(host="127.0.0.1", port=0)) as listening:
        made.url = f"http://{listening.host}:{listening.port}/token"
        yield made


def account(google: Google) -> JsonObject:
    return {"client_email": "robot@x.iam", "private_key": PEM, "private_key_id": "k1", "token_uri": google.url}


async def resolved(
    kind: str, config: JsonObject, stored: dict[str, JsonObject], variables: dict[str, str] | None = None
) -> object:
    """The fields of an entry, or the reason why there are none."""
    credentials = InMemoryToolCredentials()
    for name, data in stored.items():
        credentials.add(name, "google_service_account", data)
    call = ToolCall(
        tenant_id="default", organization_id="default", execution_id=1, step="s", kind="noop", config={"x": "{{ e }}"}
    )
    with capture_logs() as logs:
        async with open_keychain(
            credentials=credentials, variables=variables or {}, plugins=(), sign=sign_rs256
        ) as keychain:
            opened = await keychain.opened_for(call, {"e": KeychainEntry(name="e", kind=kind, config=config)})
    reasons = [log["reason"] for log in logs if log["event"] == "worker.keychain_unresolved"]
    assert PEM.splitlines()[1] not in str(logs)
    return reasons[0] if reasons else opened.keychain["e"]


async def test_an_identity_for_an_audience(google: Google) -> None:
    config: JsonObject = {"target_audience": "https://run.example", "service_account_secret": "robot"}

    assert await resolved("google_id_token", config, {"robot": account(google)}) == {
        "id_token": "an-identity",
        "token": "an-identity",
    }
    (claim,) = google.claims
    assert claim["target_audience"] == "https://run.example"
    assert (claim["iss"], claim["aud"], claim["exp"] - claim["iat"]) == ("robot@x.iam", google.url, 3600)


async def test_an_access_token_for_scopes_with_the_key_of_the_worker(google: Google) -> None:
    stored = {"robot": account(google)}
    variables = {DEFAULT_CREDENTIAL: "robot"}

    fields = await resolved("google_oauth", {}, stored, variables)
    assert isinstance(fields, dict)
    assert fields["token"] == fields["access_token"] == "an-access-token"
    await resolved("google_oauth", {"scopes": ["a", "b"]}, stored, variables)

    assert [claim["scope"] for claim in google.claims] == [DEFAULT_SCOPE, "a b"]


async def test_the_key_file_may_be_the_text_itself_or_one_field(google: Google) -> None:
    as_text: JsonObject = {"service_account_secret": json.dumps(account(google))}
    assert isinstance(await resolved("google_oauth", as_text, {}), dict)
    in_field: JsonObject = {"service_account": json.dumps(account(google))}
    assert isinstance(await resolved("google_oauth", {"service_account_secret": "one"}, {"one": in_field}), dict)


@pytest.mark.parametrize(
    ("config", "stored", "reason"),
    [
        ({}, {}, "`service_account_secret` names no credential"),
        ({"service_account_secret": "nobody"}, {}, "credential 'nobody' does not exist"),
        ({"service_account_secret": "{broken"}, {}, "the key of the service account is no JSON map"),
        (
            {"service_account_secret": "x"},
            {"x": {"private_key": "k"}},
            "the key of the service account has no client_email",
        ),
        (
            {"service_account_secret": "x"},
            {"x": {"private_key": "nonsense", "client_email": "e"}},
            "the private key cannot be read: it is no PEM without a password",
        ),
    ],
)
async def test_what_is_missing_is_said(config: JsonObject, stored: dict[str, JsonObject], reason: str) -> None:
    assert await resolved("google_oauth", config, stored) == reason


async def test_an_identity_needs_an_audience() -> None:
    assert await resolved("google_id_token", {}, {}) == "`target_audience` is empty"
