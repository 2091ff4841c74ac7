"""Rows of a loop that failed, put together as the collection of another execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.canonical import encode
from noetl_core.collection.documents import json_media_type
from noetl_core.errors import InvalidInput, NoFailedRows, NotFound, Rejected
from noetl_core.executions.reducing import REDUCE
from noetl_core.executions.state import Execution
from noetl_core.ports.event_log import Scope
from noetl_core.ports.payloads import PayloadStore
from noetl_servicekit.failed_rows import FailedRows

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of rows that are run again by one execution: they pass through this process."""


class TooManyFailedRows(Rejected):
    """The rows that failed are more than this process takes into its memory."""

    code = "frames.redrive_too_large"


class FailedRowsOf:
    """Rows are copied: those of a cursor stand among others that did not fail, each in the payload of its claim."""

    def __init__(self, failed_rows: FailedRows, *, payloads: PayloadStore) -> None:
        self._failed_rows = failed_rows
        self._payloads = payloads

    async def __call__(self, owner: Scope, execution: Execution, step: str) -> Mapping[str, Any]:
        """`{count, reference}` of the stored rows; raises `NoFailedRows` if there is none."""
        loop, stage = execution.loops.get(step), execution.stages.get(step)
        if loop is None:
            raise NotFound("loop of step", step, code="execution.loop_not_found")
        if stage is not None and stage.kind == REDUCE:
            raise InvalidInput(f"step {step!r} reduces partitions and has no rows: redrive the whole step")
        rows: list[bytes] = []
        size = 0
        found = self._failed_rows(
            owner, execution.execution_id, loop_id=loop.loop_id, from_version=loop.started_version
        )
        async for failed in found:
            rows.append(encode(failed.row))
            size += len(rows[-1])
            if size > MAX_BYTES:
                raise TooManyFailedRows(f"rows of step {step!r} that failed take more than {MAX_BYTES} bytes")
        if not rows:
            raise NoFailedRows(execution_id=str(execution.execution_id), step=step)
        data = b"[" + b",".join(rows) + b"]"
        ref = await self._payloads.put(
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            data=data,
            media_type=json_media_type(data),
        )
        return {"count": len(rows), "reference": ref.to_json()}
