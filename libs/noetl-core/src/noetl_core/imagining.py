"""The state as it will be once some facts are in the log: for decisions of which later parts build on earlier ones."""

from __future__ import annotations

from collections.abc import Iterable

from noetl_core.catalog import to_draft
from noetl_core.events import Event
from noetl_core.fold import State, fold
from noetl_core.recorded import Recorded, as_if_recorded
from noetl_core.stages.versions import next_aggregate_version
from noetl_core.values import replace


def imagine(state: State, facts: Iterable[Event], cause: Recorded) -> State:
    """The fold of facts that nobody has appended yet, as if they followed at once; what is released stays so."""
    released = state.execution.released
    for fact in facts:
        draft = to_draft(fact, idempotency_key="imagined", event_time=cause.envelope.event_time)
        imagined = as_if_recorded(
            draft,
            tenant_id=state.execution.tenant_id,
            organization_id=state.execution.organization_id,
            execution_id=state.execution.execution_id,
            stream_version=state.stream_version + 1,
            aggregate_version=next_aggregate_version(state, draft),
            time=cause.ingest_time,
        )
        state = fold(state, imagined)
    return replace(state, execution=replace(state.execution, released=released)) if released else state
