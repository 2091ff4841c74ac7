"""Which database a credential stands for; nothing of it is taken from the worker's own environment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from noetl_core.canonical import JsonValue

from noetl_worker.application.credentials import Credential
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import CallFailed, failed

_NAMES: Mapping[str, tuple[str, ...]] = {
    "host": ("db_host", "host", "pg_host", "hostname"),
    "port": ("db_port", "port", "pg_port"),
    "user": ("db_user", "user", "username", "pg_user"),
    "password": ("db_password", "password", "pg_password"),
    "database": ("db_name", "database", "dbname", "db_database", "pg_database"),
    "sslmode": ("sslmode", "db_sslmode", "ssl"),
}
_DSN_NAMES = ("dsn", "db_dsn", "url", "uri", "connection_string")
_SSL_MODES = frozenset({"disable", "allow", "prefer", "require", "verify-ca", "verify-full"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTarget:
    """Everything that a connection needs; equal targets share a pool."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    sslmode: str = "prefer"
    settings: tuple[tuple[str, str], ...] = ()
    """Session settings that an address had in its query."""


def postgres_target(credential: Credential) -> PostgresTarget:
    """The database of a credential; single fields win over those of an address."""
    found: dict[str, str] = {}
    dsn = _first(credential.data, _DSN_NAMES)
    settings: dict[str, str] = {}
    if dsn:
        found, settings = _parsed(dsn, credential)
    for field_name, names in _NAMES.items():
        value = _first(credential.data, names)
        if value:
            found[field_name] = value
    lacking = [name for name in ("host", "user") if not found.get(name)]
    if lacking:
        raise _unfit(credential, f"has no {' and no '.join(lacking)}")
    sslmode = {"true": "require", "false": "disable"}.get(found.get("sslmode", "").lower(), found.get("sslmode"))
    if sslmode and sslmode not in _SSL_MODES:
        raise _unfit(credential, f"has an sslmode that is none of {', '.join(sorted(_SSL_MODES))}")
    port = found.get("port") or "5432"
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise _unfit(credential, "has a port that is no number")
    return PostgresTarget(
        host=found["host"],
        port=int(port),
        user=found["user"],
        password=found.get("password", ""),
        database=found.get("database") or found["user"],
        sslmode=sslmode or "prefer",
        settings=tuple(sorted(settings.items())),
    )


def _parsed(dsn: str, credential: Credential) -> tuple[dict[str, str], dict[str, str]]:
    """An address in either of PostgreSQL's two forms."""
    try:
        if "://" not in dsn:
            named, settings = dict[str, str](), dict[str, str]()
            for part in shlex.split(dsn):
                name, value = part.split("=", 1)
                named["database" if name == "dbname" else name] = value
            return {name: named[name] for name in _NAMES if name in named}, settings
        parts = urlsplit(dsn)
        found = {
            "host": unquote(parts.hostname or ""),
            "port": str(parts.port or ""),
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.removeprefix("/")),
        }
        query = dict(parse_qsl(parts.query))
    except ValueError as exc:
        raise _unfit(credential, "has an address that cannot be read") from exc
    for name in ("host", "port", "user", "password", "sslmode"):
        if name in query:
            found[name] = query.pop(name)
    return {name: value for name, value in found.items() if value}, query


def _first(data: Mapping[str, JsonValue], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = data.get(name)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float) and value != "":
            return str(value)
    return None


def _unfit(credential: Credential, problem: str) -> CallFailed:
    return failed(ErrorKind.AUTH, "CREDENTIAL_UNFIT", f"the credential {credential.name!r} {problem}")
