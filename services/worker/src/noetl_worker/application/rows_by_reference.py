"""Inputs of spark tasks that are nothing but an earlier result: executors read it, so nobody loads it here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.playbook.model import Step, ToolKind
from noetl_core.playbook.outputs import PLAINLY_KEPT, Kept
from noetl_core.playbook.references import Reference, handed_on
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from noetl_core.tabular import ROWS_KEYS
from noetl_servicekit.chunk_rows import MARK

BY_REFERENCE: Final = "by_reference"
"""Stands where other reads of a result have the name by which it is read."""


def only_for_spark(step: Step) -> frozenset[str]:
    """Texts whose rows no task of the step reads in this process: whole inputs of spark tasks, and their code.

    Code of a spark task sees its inputs and nothing else, whatever words stand in it.
    """
    is_all_spark = all(task.tool.kind == ToolKind.SPARK for task in step.tasks)
    own: set[str] = {*_whole_tables(step.input)} if is_all_spark else set()
    others: set[str] = set() if is_all_spark else {*texts_in(step.input)}
    for task in step.tasks:
        if task.tool.kind != ToolKind.SPARK or task.loop is not None:
            others.update(texts_in([task.tool.input, task.tool.config]))
            continue
        own.update(_whole_tables(task.tool.input))
        code = task.tool.config.get("code")
        if isinstance(code, str) and "{{" not in code and "{%" not in code:
            own.add(code)
    return frozenset(own - others)


def marked_rows(reference: Mapping[str, Any], kept: Kept) -> JsonObject | None:
    """A result that is stored as a table, without a look at it; None if that cannot be told from its reference."""
    if reference.get("media_type") != TABLE_MEDIA_TYPE or kept != PLAINLY_KEPT:
        return None
    count = reference.get("row_count", 0)
    mark: JsonValue = {MARK: [[reference["sha256"], reference["bytes"], count, TABLE_MEDIA_TYPE]]}
    return {"row_count": count, **dict.fromkeys(ROWS_KEYS, mark)}


def _whole_tables(value: object) -> Iterator[str]:
    return (text for text in texts_in(value) if _is_table(handed_on(text)))


def _is_table(path: Reference | None) -> bool:
    """`step`, `step.rows`, `steps.step.rows`: not a field of something below."""
    if path is None:
        return False
    below = path[2:] if path[0] == "steps" else path[1:]
    return below == () or (len(below) == 1 and below[0] in ROWS_KEYS)


def texts_in(value: object) -> Iterator[str]:
    """Every text below a value."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            pending.extend(one.values())
        elif isinstance(one, list):
            pending.extend(one)
