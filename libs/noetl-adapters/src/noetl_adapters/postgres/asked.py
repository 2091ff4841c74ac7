"""What a batch must know of the log before it can be judged."""

from __future__ import annotations

from collections.abc import Container, Sequence

from noetl_core.append import PreparedRequest
from noetl_core.envelope import EXECUTION_AGGREGATE


class Asked:
    """Heads, keys, aggregates, fences and start keys that a batch names."""

    def __init__(self, requests: Sequence[PreparedRequest]) -> None:
        self.heads: set[int] = set()
        self.keys: dict[int, list[str]] = {}
        """By stream."""
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
                drafts = [prepared[0] for prepared in stream.drafts]
                self.keys.setdefault(execution_id, []).extend([draft.idempotency_key for draft in drafts])
                self.aggregates.update(
                    [
                        (execution_id, draft.aggregate_id)
                        for draft in drafts
                        if draft.aggregate_type != EXECUTION_AGGREGATE
                    ]
                )

    def key_columns(self, known: Container[int] | None = None) -> tuple[list[int], list[int], list[int], list[str]]:
        """Streams, of each where its keys begin and end among all of them, and the keys; of known streams, if given."""
        streams: list[int] = []
        first: list[int] = []
        last: list[int] = []
        keys: list[str] = []
        for execution_id, own in self.keys.items():
            if known is None or execution_id in known:
                streams.append(execution_id)
                first.append(len(keys) + 1)
                keys += own
                last.append(len(keys))
        return streams, first, last, keys


def as_columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    """Rows as the arrays that a statement takes."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
