"""The table that a transfer writes to: its name, its columns, and the statements that put rows into it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import CallFailed, failed, misconfigured
from noetl_worker.tools.sql_text import quoted_name, table_name
from noetl_worker.tools.tool_config import ToolConfig


class Mode(StrEnum):
    """What becomes of the rows that are there."""

    APPEND = "append"
    REPLACE = "replace"
    UPSERT = "upsert"


_MODES = {**{mode.value: mode for mode in Mode}, "insert": Mode.APPEND}


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """What the playbook says about the target."""

    table: str
    mode: Mode
    key: tuple[str, ...] = ()
    """The columns that tell rows apart, for upsert; without any, the primary key."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Schema and table."""
        return table_name(self.table)

    @property
    def quoted(self) -> str:
        """The name as SQL has it."""
        return ".".join(map(quoted_name, self.parts))


def table_plan(config: ToolConfig) -> TablePlan:
    """Read `table`, `mode` and `key`."""
    word = (config.text("mode") or "append").lower()
    mode = _MODES.get(word)
    if mode is None:
        raise misconfigured(f"`mode` is {word!r}: append, replace and upsert are possible")
    written = config.value("key", "keys")
    names = written if isinstance(written, list) else [] if written is None else str(written).split(",")
    plan = TablePlan(table=config.required_text("table"), mode=mode, key=tuple(str(name).strip() for name in names))
    if not plan.parts or not all(plan.parts):
        raise misconfigured("`table` is not the name of a table")
    return plan


def matched(names: Sequence[str], known: Sequence[str], plan: TablePlan) -> list[str]:
    """The columns of the table that are meant, by their exact names or else in any case."""
    in_any_case = {name.lower(): name for name in known}
    found = [name if name in known else in_any_case.get(name.lower()) for name in names]
    for name, column in zip(names, found, strict=True):
        if column is None:
            raise failed(ErrorKind.SCHEMA, "TRANSFER_COLUMN", f"the table {plan.table!r} has no column {name!r}")
    return [column for column in found if column is not None]


def key_columns(plan: TablePlan, primary_key: Sequence[str], known: Sequence[str]) -> list[str]:
    """What tells rows apart."""
    if plan.key:
        return matched(plan.key, known, plan)
    if not primary_key:
        message = f"upsert needs to know what tells rows apart: {plan.table!r} has no primary key, so write `key`"
        raise failed(ErrorKind.SCHEMA, "TRANSFER_KEY", message)
    return list(primary_key)


def key_missing(plan: TablePlan, keys: Sequence[str], columns: Sequence[str]) -> CallFailed | None:
    """Without its key a row cannot be told from others."""
    lacking = [key for key in keys if key not in columns]
    if not lacking:
        return None
    return failed(ErrorKind.SCHEMA, "TRANSFER_KEY", f"the rows for {plan.table!r} lack the key {lacking[0]!r}")


def on_conflict(keys: Sequence[str], columns: Sequence[str]) -> str:
    """What to do with a row that is there: its other columns are overwritten."""
    others = [quoted_name(column) for column in columns if column not in keys]
    target = f"ON CONFLICT ({names_text(keys)})"
    if not others:
        return f"{target} DO NOTHING"
    return f"{target} DO UPDATE SET {', '.join(f'{column} = EXCLUDED.{column}' for column in others)}"


def names_text(columns: Sequence[str]) -> str:
    """Names with commas between them."""
    return ", ".join(map(quoted_name, columns))
