"""Credentials as DuckDB's own secrets, which it never shows: one for each alias of `auth`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from noetl_core.canonical import JsonValue

from noetl_worker.application.credentials import Auth, Credential
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import CallFailed, failed
from noetl_worker.tools.postgres_target import postgres_target
from noetl_worker.tools.sql_text import quoted_name, quoted_text

_S3_FIELDS: Mapping[str, tuple[str, ...]] = {
    "KEY_ID": ("access_key_id", "key_id", "aws_access_key_id"),
    "SECRET": ("secret_access_key", "secret_key", "secret", "aws_secret_access_key"),
    "SESSION_TOKEN": ("session_token", "aws_session_token"),
    "REGION": ("region", "aws_region"),
    "ENDPOINT": ("endpoint",),
    "URL_STYLE": ("url_style",),
    "USE_SSL": ("use_ssl",),
    "SCOPE": ("scope",),
}
_HTTP_TYPES = frozenset({"http", "bearer", "api_key"})
_DUCKDB_TYPES = frozenset({"duckdb", "generic", ""})
"""Credentials that say which file to open, and need no secret."""


def secret_statements(auth: Auth) -> list[str]:
    """What to run before the step's own SQL; a credential without an alias goes by its own name."""
    named = dict(auth.aliases)
    if auth.single is not None:
        named[auth.single.name] = auth.single
    statements = (_create_secret(alias, credential) for alias, credential in named.items())
    return [statement for statement in statements if statement is not None]


def _create_secret(alias: str, credential: Credential) -> str | None:
    kind = credential.type.lower()
    if kind in ("postgres", "postgresql", "pg"):
        options = _postgres_options(credential)
    elif kind in ("s3", "aws", "gcs", "hmac", "gcs_hmac"):
        is_s3 = kind in ("s3", "aws")
        options = {"TYPE": "s3" if is_s3 else "gcs", **_found(credential.data, _S3_FIELDS)}
        if not {"KEY_ID", "SECRET"} <= options.keys():
            raise _unfit(credential, "has no key id and secret")
    elif kind in _HTTP_TYPES:
        token = next((credential.data.get(name) for name in ("token", "value", "api_key", "access_token")), None)
        if not isinstance(token, str) or not token:
            raise _unfit(credential, "has no token")
        options = {"TYPE": "http", "BEARER_TOKEN": token, **_found(credential.data, {"SCOPE": ("scope",)})}
    elif kind in _DUCKDB_TYPES:
        return None
    else:
        raise _unfit(credential, f"is of type {credential.type!r}, which DuckDB has no secret for")
    written = ", ".join(f"{name} {quoted_text(value)}" for name, value in options.items())
    return f"CREATE OR REPLACE SECRET {quoted_name(alias)} ({written})"


def _postgres_options(credential: Credential) -> dict[str, str]:
    target = postgres_target(credential)
    return {
        "TYPE": "postgres",
        "HOST": target.host,
        "PORT": str(target.port),
        "USER": target.user,
        "PASSWORD": target.password,
        "DATABASE": target.database,
    }


def _found(data: Mapping[str, JsonValue], fields: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for option, names in fields.items():
        value = next((data[name] for name in names if data.get(name) not in (None, "")), None)
        if value is not None:
            found[option] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _unfit(credential: Credential, problem: str) -> CallFailed:
    return failed(ErrorKind.AUTH, "CREDENTIAL_UNFIT", f"the credential {credential.name!r} {problem}")
