"""Tokens of Google's servers for the key of a service account: a signed claim goes in, a token comes out."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from noetl_core.canonical import JsonObject, JsonValue

from noetl_worker.application.credentials import Credentials
from noetl_worker.application.keychain import Secret, SecretRequest, SecretSource, Unresolved, is_empty
from noetl_worker.tools.keychain_sources import fetched

Sign = Callable[[str, bytes], bytes]
"""Signs bytes with a private key in PEM (RS256)."""

DEFAULT_CREDENTIAL: Final = "NOETL_KEYCHAIN_GOOGLE_CREDENTIAL"
"""The credential with the key of the service account for entries that name none."""
EXCHANGE_URI: Final = "https://oauth2.googleapis.com/token"
DEFAULT_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"

_CLAIM_SECONDS = 3600
_ID_TOKEN_SECONDS = 3300.0
"""Tokens of identity last an hour, and their answer does not say so."""


class GoogleTokens:
    """`google_id_token` and `google_oauth`; a package that provides the kind goes before."""

    def __init__(
        self,
        exchange: SecretSource,
        credentials: Credentials,
        sign: Sign,
        *,
        providers: Mapping[str, SecretSource],
        default_credential: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._exchange = exchange
        self._credentials = credentials
        self._sign = sign
        self._providers = providers
        self._default_credential = default_credential
        self._clock = clock

    async def resolve(self, request: SecretRequest) -> Secret:
        """The answer of the server, with its token under the name `token` too."""
        provider = self._providers.get(request.kind)
        if provider is not None:
            return await provider.resolve(request)
        claim = self._claim(request)
        account = await self._account(request)
        uri = str(account.get("token_uri") or EXCHANGE_URI)
        assertion = await asyncio.to_thread(self._assertion, account, {**claim, "aud": uri})
        form: JsonObject = {"grant_type": GRANT, "assertion": assertion}
        asked = replace(request, config={"endpoint": uri, "data": form})
        secret = await self._exchange.resolve(asked)
        token = secret.fields.get("id_token" if request.kind == "google_id_token" else "access_token")
        if is_empty(token):
            raise Unresolved("the server gave no token of the kind that was asked for")
        lives = _ID_TOKEN_SECONDS if request.kind == "google_id_token" else secret.lives_seconds
        return Secret(fields={**secret.fields, "token": token}, lives_seconds=lives)

    def _claim(self, request: SecretRequest) -> JsonObject:
        if request.kind == "google_id_token":
            audience = request.config.get("target_audience")
            if is_empty(audience):
                raise Unresolved("`target_audience` is empty")
            return {"target_audience": audience}
        scopes = request.config.get("scopes") or DEFAULT_SCOPE
        return {"scope": " ".join(map(str, scopes)) if isinstance(scopes, list) else str(scopes)}

    async def _account(self, request: SecretRequest) -> JsonObject:
        """The key file of the service account: the text itself, or a credential that has its fields."""
        named = request.config.get("service_account_secret") or self._default_credential
        if isinstance(named, str) and named.lstrip().startswith("{"):
            account = _parsed(named)
        else:
            account = await fetched(self._credentials, request, named, "service_account_secret")
            whole = account.get("service_account") or account.get("json")
            if "private_key" not in account and whole:  # a credential may have the key file as one field
                account = _parsed(whole)
        missing = [key for key in ("client_email", "private_key") if is_empty(account.get(key))]
        if missing:
            raise Unresolved(f"the key of the service account has no {missing[0]}")
        return account

    def _assertion(self, account: JsonObject, claim: JsonObject) -> str:
        now = int(self._clock())
        header: JsonObject = {"alg": "RS256", "typ": "JWT"}
        if account.get("private_key_id"):
            header["kid"] = account["private_key_id"]
        told: JsonObject = {**claim, "iss": account["client_email"], "iat": now, "exp": now + _CLAIM_SECONDS}
        signed = f"{_encoded(header)}.{_encoded(told)}"
        return f"{signed}.{_base64(self._sign(str(account['private_key']), signed.encode()))}"


def _parsed(value: JsonValue) -> JsonObject:
    try:
        account = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        account = None
    if not isinstance(account, dict):
        raise Unresolved("the key of the service account is no JSON map")
    return account


def _encoded(value: JsonObject) -> str:
    return _base64(json.dumps(value, separators=(",", ":"), sort_keys=True).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
