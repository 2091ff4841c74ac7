"""Rows of a loop that failed in another execution, and that this one runs again instead of the whole collection."""

from __future__ import annotations

from noetl_core.executions.evaluators import Stored
from noetl_core.executions.state import Execution
from noetl_core.payloads import PayloadRef


def redriven_rows(execution: Execution, step: str, activation: int) -> Stored | None:
    """The collection of an activation, if it is those rows: of the step that the execution begins with, the first."""
    rows = execution.redriven_rows
    if rows is None or rows["step"] != step or activation != 1:
        return None
    return Stored(ref=PayloadRef.from_json(rows["reference"]), type="list", count=int(rows["count"]))


def runs_failed_rows(execution: Execution, step: str) -> bool:
    """§7.8: whether the step runs such rows and no others: what follows it had the other rows, and has run."""
    return execution.redriven_rows is not None and execution.redriven_rows["step"] == step
