"""Outcomes of tasks within the bytes of a parked pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.canonical import JsonObject, JsonValue

from noetl_worker.application.outcome import ErrorKind, Outcome, OutcomeError, OutcomeMeta


def outcome_object(outcome: Outcome) -> JsonObject:
    """What is stored of an outcome; what it printed is kept elsewhere."""
    facts: dict[str, JsonValue] = {
        name: dict(value) for name in ("py", "http", "pg") if (value := getattr(outcome, name)) is not None
    }
    return {
        "data": outcome.data,
        "error": outcome.error.to_json() if outcome.error else None,
        "attempt": outcome.meta.attempt,
        "duration_ms": outcome.meta.duration_ms,
        **facts,
    }


def read_outcome(fields: Mapping[str, Any]) -> Outcome:
    """Read it back."""
    error = fields["error"]
    return Outcome(
        data=fields["data"],
        error=OutcomeError(
            kind=ErrorKind(error["kind"]),
            code=error["code"],
            message=error["message"],
            retryable=error["retryable"],
            status_code=error.get("status_code"),
        )
        if error
        else None,
        py=fields.get("py"),
        http=fields.get("http"),
        pg=fields.get("pg"),
        meta=OutcomeMeta(attempt=fields["attempt"], duration_ms=fields["duration_ms"]),
    )
