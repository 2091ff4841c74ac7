"""Appends to one execution by who owns its shard: under its fence, and with the parent where that has to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from noetl_core.append import Appended, AppendRequest, Fence, Hint, StreamAppend
from noetl_core.envelope import Draft
from noetl_core.executions.state import Execution
from noetl_core.ports.event_log import EventLog

from noetl_planner.application.parking import append_with_parent
from noetl_planner.application.turn_parts import TurnRules


class OwnAppends:
    """Whoever does not own the shard any more is refused by the log."""

    def __init__(
        self, log: EventLog, *, shard: int, fence: Callable[[int], Fence], producer: str, rules: TurnRules
    ) -> None:
        self._log = log
        self._shard = shard
        self._fence = fence
        self._producer = producer
        self._rules = rules

    async def __call__(
        self,
        execution: Execution,
        drafts: Sequence[Draft],
        hints: Sequence[Hint] = (),
        *,
        expected_version: int | None,
        asked_by: Fence | None = None,
    ) -> tuple[Appended, ...]:
        """What was appended; raises what the log refuses it with."""
        alone = AppendRequest(
            tenant_id=execution.tenant_id,
            organization_id=execution.organization_id,
            streams=(
                StreamAppend(
                    execution_id=execution.execution_id,
                    drafts=tuple(drafts),
                    expected_stream_version=expected_version,
                ),
            ),
            fence=self._fence(self._shard),
            asked_by=asked_by,
            hints=tuple(hints),
            producer=self._producer,
        )
        return await append_with_parent(self._log, alone, execution, work_subject=self._rules.work_subject)
