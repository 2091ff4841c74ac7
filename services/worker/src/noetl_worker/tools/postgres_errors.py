"""PostgreSQL's errors in words that policies understand."""

from __future__ import annotations

import asyncpg
from noetl_core.canonical import JsonObject

from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.connection_errors import connection_trouble
from noetl_worker.tools.sql_results import SqlError

_KINDS: tuple[tuple[str, ErrorKind], ...] = (
    ("40001", ErrorKind.DB_DEADLOCK),
    ("40P01", ErrorKind.DB_DEADLOCK),
    ("42501", ErrorKind.AUTH),
    ("42601", ErrorKind.PARSE),
    ("53100", ErrorKind.STORAGE_QUOTA),
    ("55P03", ErrorKind.DB_TIMEOUT),
    ("57014", ErrorKind.DB_TIMEOUT),
    ("57P", ErrorKind.DB_CONNECTION),
    ("08", ErrorKind.DB_CONNECTION),
    ("22", ErrorKind.TRANSFORM),
    ("23", ErrorKind.DB_CONSTRAINT),
    ("28", ErrorKind.AUTH),
    ("3D", ErrorKind.NOT_FOUND),
    ("42", ErrorKind.SCHEMA),
    ("53", ErrorKind.DB_CONNECTION),
)
"""SQLSTATE, or how it begins; the more precise entries come first."""

_FACTS = {
    "detail": "detail",
    "hint": "hint",
    "schema_name": "schema",
    "table_name": "table",
    "column_name": "column",
    "constraint_name": "constraint",
    "position": "position",
}

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError, OverflowError)
"""What the driver may raise; the last two come from values that Python has no type for. Timeouts are OSErrors."""


def sql_error(error: Exception) -> SqlError:
    """Why a statement, or the connection itself, failed."""
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error)
    if isinstance(error, OSError) or "connection" in str(error).lower():
        trouble = connection_trouble(error)
        code = "CONN_LOST" if trouble.code == "CONN_ERROR" else trouble.code
        message = f"the database cannot be reached: {trouble.message}"
        return SqlError(
            kind=ErrorKind.DB_CONNECTION, code=code, message=message, retryable=trouble.retryable, ends_call=True
        )
    return SqlError(kind=ErrorKind.SCHEMA, code="PG_DRIVER", message=f"the driver refused the statement: {error}")


def sqlstate_kind(sqlstate: str) -> ErrorKind:
    """What a SQLSTATE means to policies."""
    return next((kind for prefix, kind in _KINDS if sqlstate.startswith(prefix)), ErrorKind.UNKNOWN)


def _from_server(error: asyncpg.PostgresError) -> SqlError:
    sqlstate = error.sqlstate or "XX000"
    kind = sqlstate_kind(sqlstate)
    facts: JsonObject = {"sqlstate": sqlstate}
    for attribute, name in _FACTS.items():
        value = getattr(error, attribute, None)
        if value is not None:
            facts[name] = str(value)
    return SqlError(
        kind=kind,
        code=f"PG_{sqlstate}",
        message=str(error.args[0] if error.args else error),
        facts=facts,
        ends_call=kind is ErrorKind.DB_CONNECTION,
    )
