"""What a batch must know of the log before it can be judged."""

from __future__ import annotations

from collections.abc import Sequence

from noetl_core.append import PreparedRequest
from noetl_core.envelope import EXECUTION_AGGREGATE


class Asked:
    """Heads, keys, aggregates, fences and start keys that a batch names."""

    def __init__(self, requests: Sequence[PreparedRequest]) -> None:
        self.heads: set[int] = set()
        self.keys: list[tuple[int, str]] = []
        self.aggregates: set[tuple[int, str]] = set()
        self.fences: set[tuple[str, int]] = set()
        self.starts: list[tuple[str, str, str]] = []
        for prepared in requests:
            request = prepared.request
            self.fences.update((fence.role, fence.shard) for fence in request.fences)
            for stream in prepared.streams:
                start, execution_id = stream.append.start, stream.append.execution_id
                if start is not None and start.start_key:  # under an id that was made for it: nobody has it yet
                    self.starts.append((request.tenant_id, request.organization_id, start.start_key))
                    continue
                self.heads.add(execution_id)
                for draft in stream.drafts:
                    self.keys.append((execution_id, draft.draft.idempotency_key))
                    if draft.draft.aggregate_type != EXECUTION_AGGREGATE:
                        self.aggregates.add((execution_id, draft.draft.aggregate_id))


def as_columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    """Rows as the arrays that a statement takes."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
