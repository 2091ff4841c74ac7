"""The request that an http step describes: address, query, headers and one of the forms that a body can have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from multidict import CIMultiDict
from noetl_core.canonical import JsonValue

from noetl_worker.application.credential_names import is_credential_name
from noetl_worker.tools.call_failed import misconfigured
from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_auth import HttpAuth
from noetl_worker.tools.tool_config import ToolConfig

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
IDEMPOTENCY_KEY = "Idempotency-Key"

_BODY_KEYS = ("json", "payload", "form", "body", "data")
_NONE: frozenset[str] = frozenset()
_WITHOUT_BODY = frozenset({"GET", "HEAD"})
_SPLIT_KEYS = frozenset({"query", "body"})


class HttpRequest(NamedTuple):
    """A request before it is sent, and what of it must stay with the server it is meant for."""

    method: str
    url: HttpAddress
    headers: CIMultiDict[str]
    content: bytes | None
    secret_headers: frozenset[str] = _NONE
    secret_params: frozenset[str] = _NONE


def build_request(config: ToolConfig, auth: HttpAuth) -> HttpRequest:
    """Everything is rendered here, before anything is sent; what nobody has written is not asked for."""
    written = config.call.config
    method = _method(config) if "method" in written else "GET"
    headers: CIMultiDict[str] = _headers(config.mapping("headers")) if "headers" in written else CIMultiDict()
    params = _params(config.mapping("params")) if "params" in written else []
    content: bytes | None = None
    if not written.keys().isdisjoint(_BODY_KEYS):
        content_type, content, query = _body(config, method, headers.get("Content-Type"))
        params += query
        if content_type is not None and "Content-Type" not in headers:
            headers["Content-Type"] = content_type
    if method != "GET" and IDEMPOTENCY_KEY not in headers and (key := config.call.names.get("idempotency_key")):
        headers[IDEMPOTENCY_KEY] = str(key)
    url = _url(config.required_text("url", "endpoint"))
    if url.password:
        config.secrets.add(url.password)
    if auth.headers or auth.params:
        headers.update(auth.headers)
        params += auth.params.items()
    return HttpRequest(
        method=method,
        url=url.with_more_query(urlencode(params)) if params else url,
        headers=headers,
        content=content,
        secret_headers=_secret_headers(headers, auth) if headers else _NONE,
        secret_params=frozenset(auth.params) if auth.params else _NONE,
    )


def query_text(value: JsonValue) -> str:
    """A value as a query or a form carries it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)


def _method(config: ToolConfig) -> str:
    method = (config.text("method") or "GET").upper()
    if not method.isascii() or not method.isalpha():
        raise misconfigured("`method` is not the name of an HTTP method")
    if method == "CONNECT":
        raise misconfigured("`method` is CONNECT, which is for proxies: what comes after it is no HTTP")
    return method


def _secret_headers(headers: CIMultiDict[str], auth: HttpAuth) -> frozenset[str]:
    of_auth = frozenset(name.lower() for name in auth.headers)
    return frozenset(name.lower() for name in headers if name.lower() in of_auth or is_credential_name(name))


def _url(text: str) -> HttpAddress:
    try:
        return HttpAddress.parse(text.strip())
    except ValueError as exc:
        raise misconfigured(f"`url` {exc}") from exc


def _headers(given: Mapping[str, JsonValue]) -> CIMultiDict[str]:
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in given.items():
        if value is None:
            continue
        text = query_text(value)
        if any(character in "\r\n\0" for character in name + text):
            raise misconfigured(f"the header {name!r} has a line break")
        headers[name] = text
    return headers


def _params(given: Mapping[str, JsonValue]) -> list[tuple[str, str]]:
    """Nulls are dropped, lists repeat their name."""
    return [
        (name, query_text(item))
        for name, value in given.items()
        for item in (value if isinstance(value, list) else [value])
        if item is not None
    ]


def _body(
    config: ToolConfig, method: str, content_type: str | None
) -> tuple[str | None, bytes | None, list[tuple[str, str]]]:
    """The type and the bytes of the body, and what of `data` belongs into the query."""
    written = config.call.config
    key = next((key for key in _BODY_KEYS if written.get(key) is not None), None)
    value = None if key is None else config.value(key)
    if key is None or value is None:
        return None, None, []
    query: list[tuple[str, str]] = []
    if key == "data":
        if isinstance(value, dict) and value and value.keys() <= _SPLIT_KEYS:
            given = value.get("query") or {}
            if not isinstance(given, dict):
                raise misconfigured("`data.query` is not a map")
            query, value = _params(given), value.get("body")
        elif method in _WITHOUT_BODY and isinstance(value, dict):
            query, value = _params(value), None
    if value is None:
        return None, None, query
    is_form = key == "form" or (content_type or "").lower().startswith(FORM)
    return *_encoded(key, value, is_form=is_form), query


def _encoded(key: str, value: JsonValue, *, is_form: bool) -> tuple[str | None, bytes]:
    if is_form and isinstance(value, dict):
        return FORM, urlencode(_params(value)).encode()
    if key == "form" and not isinstance(value, str):
        raise misconfigured("`form` is neither a map nor text")
    if isinstance(value, str) and key not in ("json", "payload"):
        return (FORM if key == "form" else None), value.encode()
    if isinstance(value, str) and key == "payload" and _is_json(value):
        return JSON, value.encode()  # a template that ends in `tojson` has written it out already
    return JSON, json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False
