"""What one statement gave, and what a call of several statements results in; for every SQL tool alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from noetl_core.canonical import JsonObject, JsonValue

from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.light_values import light_value
from noetl_worker.application.outcome import ErrorKind, Outcome

Row = dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlError:
    """Why a statement failed, in words that policies understand."""

    kind: ErrorKind
    code: str
    message: str
    retryable: bool | None = None
    facts: Mapping[str, JsonValue] | None = None
    """What else the database said: `pg` of the outcome."""
    ends_call: bool = False
    """Whether no further statement can be run, because the connection is gone."""


@light_value(frozen=True, slots=True, kw_only=True)
class StatementEnd:
    """Rows, or the number of rows that a statement changed, or an error."""

    columns: tuple[str, ...] | None = None
    rows: Sequence[Row] = ()
    row_count: int = 0
    message: str = ""
    error: SqlError | None = None
    is_streamed: bool = False
    """Its rows have gone out in chunks, and are not here."""
    has_changed_rows_alone: bool = False
    """Nothing of its session, as far as it says."""

    def to_json(self, secrets: KnownSecrets) -> JsonObject:
        """The form in which templates find it as `command_0` and so on."""
        if self.error is not None:
            return {"status": "error", "message": secrets.hide(self.error.message), "code": self.error.code}
        if self.columns is None:
            return {"status": "success", "row_count": self.row_count, "message": self.message}
        columns: list[JsonValue] = list(self.columns)
        if self.is_streamed:
            return {"status": "success", "row_count": self.row_count, "columns": columns}
        rows: list[JsonValue] = list(self.rows)
        return {"status": "success", "rows": rows, "row_count": len(rows), "columns": columns}


def combined(ends: Sequence[StatementEnd], secrets: KnownSecrets) -> Outcome:
    """The last statement's fields on top, each one's below; the first error is the call's."""
    each: JsonObject = {}
    error, failures = None, 0
    for index, end in enumerate(ends):
        each[f"command_{index}"] = last = end.to_json(secrets)
        if end.error is not None:
            error, failures = error or end.error, failures + 1
    data: JsonObject = {**last, **each} if ends else {}
    if ends and ends[-1].columns is not None and ends[-1].error is None:
        data = {**last, "statement_count": len(ends), **each}
    if error is None:
        return Outcome(data=data)
    of_how_many = f" ({failures} of {len(ends)} statements failed)" if len(ends) > 1 else ""
    return Outcome.failed(
        kind=error.kind,
        code=error.code,
        message=f"{error.message}{of_how_many}",
        retryable=error.retryable,
        data=data,
        pg=error.facts,
    )
