"""Where entries of the keychain come from without any cloud: the playbook, stored credentials, an OAuth 2 server."""

from __future__ import annotations

from collections.abc import Mapping

from noetl_core.canonical import JsonObject, JsonValue

from noetl_worker.application.credentials import Credentials
from noetl_worker.application.keychain import Secret, SecretRequest, SecretSource, Unresolved, is_empty
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed
from noetl_worker.tools.http import TRANSPORT_ERRORS
from noetl_worker.tools.http_auth import HttpAuth
from noetl_worker.tools.http_clients import HttpClients, HttpOptions
from noetl_worker.tools.http_request import JSON, build_request
from noetl_worker.tools.http_response import parse_body, transport_outcome
from noetl_worker.tools.tool_config import ToolConfig, as_rendered

DEFAULT_LIFE_SECONDS = 60.0
"""Of a token whose server does not say how long it is good."""

OWN_PROVIDERS = frozenset({"", "noetl", "credential", "credentials"})
"""Providers that mean the credentials of this installation."""

_TIMEOUT_SECONDS = 30.0


class StaticSource:
    """`map`, as it is written."""

    async def resolve(self, request: SecretRequest) -> Secret:
        """Its fields; there must be some."""
        fields = request.config.get("map")
        if not isinstance(fields, dict) or not fields:
            raise Unresolved("`map` has no fields")
        return Secret(fields=fields)


class BearerSource:
    """`token`, known as `access_token` too, as those of an OAuth 2 server are."""

    async def resolve(self, request: SecretRequest) -> Secret:
        """The token, if there is one."""
        token = request.config.get("token")
        if is_empty(token):
            raise Unresolved("`token` is empty")
        return Secret(fields={"token": token, "access_token": token})


class CredentialSource:
    """A stored credential; fetched for each call, since it may be replaced at any time."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def resolve(self, request: SecretRequest) -> Secret:
        """The data of the credential."""
        return Secret(fields=await fetched(self._credentials, request, request.config.get("credential"), "credential"))


class SecretsSource:
    """`secrets` and `secret_manager`: fields of a stored credential, or whatever the plug-in of a provider knows."""

    def __init__(self, credentials: Credentials, providers: Mapping[str, SecretSource]) -> None:
        self._credentials = credentials
        self._providers = providers

    async def resolve(self, request: SecretRequest) -> Secret:
        """By `provider`; without one, `auth` names a credential and `map` says which of its fields are wanted."""
        provider = str(request.config.get("provider") or "")
        if provider not in OWN_PROVIDERS:
            return await provided(self._providers, provider).resolve(request)
        stored = await fetched(self._credentials, request, request.config.get("auth"), "auth")
        wanted = request.config.get("map")
        if not isinstance(wanted, dict) or not wanted:
            return Secret(fields=stored)
        missing = sorted(str(place) for place in wanted.values() if place not in stored)
        if missing:
            raise Unresolved(f"the credential has no field {missing[0]!r}")
        return Secret(fields={field: stored[str(place)] for field, place in wanted.items()})


class PluginSource:
    """A kind of which this installation has no source unless a package provides one."""

    def __init__(self, providers: Mapping[str, SecretSource]) -> None:
        self._providers = providers

    async def resolve(self, request: SecretRequest) -> Secret:
        """What the plug-in says."""
        return await provided(self._providers, request.kind).resolve(request)


class OAuth2Source:
    """Asks a server for a token, and keeps it as long as the server says."""

    def __init__(self, clients: HttpClients) -> None:
        self._clients = clients

    async def resolve(self, request: SecretRequest) -> Secret:
        """The fields of the answer; it must be a map with a token."""
        try:
            answer = await self._ask(request)
        except CallFailed as exc:
            raise Unresolved(str(exc)) from exc
        if not isinstance(answer, dict) or is_empty(answer.get("access_token") or answer.get("id_token")):
            raise Unresolved("the answer of the server has no access_token")
        return Secret(fields=answer, lives_seconds=_life(answer.get("expires_in")))

    async def _ask(self, request: SecretRequest) -> JsonValue:
        config = _request_config(request)
        sent = build_request(config, HttpAuth())
        options = HttpOptions(timeout_seconds=_TIMEOUT_SECONDS)
        try:
            reply = await self._clients.exchange(sent, options, secrets=config.secrets)
        except TRANSPORT_ERRORS as exc:
            raise CallFailed(transport_outcome(exc, timeout_seconds=_TIMEOUT_SECONDS)) from exc
        if not 200 <= reply.status_code < 300:
            raise Unresolved(f"the server answered HTTP {reply.status_code}")  # what it says may repeat the request
        return parse_body(reply)


def _request_config(request: SecretRequest) -> ToolConfig:
    """A form, as the standard wants it, unless the headers say JSON. Nothing of it is rendered a second time."""
    data, headers = request.config.get("data"), request.config.get("headers")
    named = {name.lower(): str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}
    is_json = named.get("content-type", "").lower().startswith(JSON)
    body: JsonObject = {}
    if not is_empty(data):
        body = {"json" if is_json else "form" if isinstance(data, dict) else "body": data}
    call = ToolCall(
        tenant_id=request.tenant_id,
        organization_id=request.organization_id,
        execution_id=request.execution_id,
        step=request.name,
        kind=request.kind,
        config={
            "url": request.config.get("endpoint"),
            "method": request.config.get("method") or "POST",
            "headers": {"Accept": JSON, **(headers if isinstance(headers, dict) else {})},
            **body,
        },
    )
    config = ToolConfig(as_rendered(call))
    config.secrets.add_fields({"data": data, "headers": headers})
    return config


def _life(expires_in: JsonValue) -> float:
    try:
        seconds = float(str(expires_in))
    except ValueError:
        return DEFAULT_LIFE_SECONDS
    return seconds if 0 <= seconds < 1e9 else DEFAULT_LIFE_SECONDS


async def fetched(credentials: Credentials, request: SecretRequest, name: JsonValue, key: str) -> JsonObject:
    """The data of a credential that an entry names; `NoetlError` if there is none."""
    if isinstance(name, dict):  # written as `auth` may be: {type or source, key}
        name = name.get("key") or name.get("credential")
    if not isinstance(name, str) or not name:
        raise Unresolved(f"`{key}` names no credential")
    credential = await credentials.get(
        tenant_id=request.tenant_id,
        organization_id=request.organization_id,
        name=name,
        execution_id=request.execution_id,
    )
    return dict(credential.data)


def provided(providers: Mapping[str, SecretSource], name: str) -> SecretSource:
    """The source that a package provides under this name."""
    source = providers.get(name)
    if source is None:
        raise Unresolved(f"no package of this worker provides {name!r} (entry point group noetl.keychain)")
    return source
