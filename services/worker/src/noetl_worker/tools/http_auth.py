"""How a credential is shown to an HTTP server: in a header or in the query."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from noetl_core.canonical import JsonValue

from noetl_worker.application.credentials import Credential
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import CallFailed, failed

_TOKEN_FIELDS = ("token", "access_token", "bearer_token", "value")
_KEY_FIELDS = ("value", "api_key", "token", "secret")
_USER_FIELDS = ("username", "user", "db_user")
_PASSWORD_FIELDS = ("password", "db_password")
_BEARER_TYPES = frozenset({"bearer", "oauth2", "oauth", "token", "google_oauth", "google_id_token"})
_KEY_TYPES = frozenset({"api_key", "apikey", "header"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAuth:
    """What is added to a request, all of it secret."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, str] = field(default_factory=dict, repr=False)


def http_auth(credential: Credential) -> HttpAuth:
    """By the credential's type; one without a type is what its fields suggest."""
    kind = credential.type.lower() or _guess(credential.data)
    if kind in _BEARER_TYPES:
        token = _field(credential, _TOKEN_FIELDS)
        return HttpAuth(headers={"Authorization": _header_value(f"Bearer {token}", credential)})
    if kind in ("basic", "http_basic"):
        user = _field(credential, _USER_FIELDS)
        password = _field(credential, _PASSWORD_FIELDS, default="")
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        return HttpAuth(headers={"Authorization": f"Basic {encoded}"})
    if kind in _KEY_TYPES:
        return _api_key(credential)
    raise _unfit(credential, f"is of type {credential.type!r}; an http step takes bearer, basic and api_key")


def _api_key(credential: Credential) -> HttpAuth:
    key = _field(credential, _KEY_FIELDS)
    place = str(credential.data.get("in") or credential.data.get("location") or "header")
    if place == "query":
        return HttpAuth(params={_field(credential, ("param", "name", "header"), default="api_key"): key})
    name = _field(credential, ("header", "header_name", "name"), default="X-API-Key")
    prefix = _field(credential, ("prefix",), default="")
    return HttpAuth(headers={name: _header_value(f"{prefix} {key}".strip(), credential)})


def _guess(data: Mapping[str, JsonValue]) -> str:
    if any(data.get(name) for name in _PASSWORD_FIELDS) and any(data.get(name) for name in _USER_FIELDS):
        return "basic"
    if data.get("api_key") or data.get("header") or data.get("header_name"):
        return "api_key"
    return "bearer"


def _field(credential: Credential, names: tuple[str, ...], *, default: str | None = None) -> str:
    for name in names:
        value = credential.data.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    if default is None:
        raise _unfit(credential, f"has no {names[0]}")
    return default


def _header_value(text: str, credential: Credential) -> str:
    if not text.isascii() or any(ord(character) < 32 for character in text):
        raise _unfit(credential, "has characters that no header can carry")
    return text


def _unfit(credential: Credential, problem: str) -> CallFailed:
    return failed(ErrorKind.AUTH, "CREDENTIAL_UNFIT", f"the credential {credential.name!r} {problem}")
