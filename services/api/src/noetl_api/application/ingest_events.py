"""Takes events of users and other systems into executions; a batch is one atomic append."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from noetl_core.append import Appended, AppendRequest, StreamAppend
from noetl_core.envelope import Draft
from noetl_core.errors import InvalidInput
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller

from noetl_api.application.append_events import AppendEvents
from noetl_api.application.scopes import acting_scope

MAX_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingEvent:
    """An event and the execution that it is about."""

    execution_id: int
    draft: Draft


class IngestEvents:
    """Every event of a batch is appended, or none."""

    def __init__(self, append: AppendEvents, *, make_key: Callable[[], str]) -> None:
        self._append = append
        self._make_key = make_key

    async def __call__(
        self, caller: Caller, scope: Scope | None, events: Sequence[IncomingEvent]
    ) -> tuple[Appended, ...]:
        """One outcome per event, in the order of the batch; events of one execution keep theirs."""
        if not 0 < len(events) <= MAX_BATCH:
            raise InvalidInput(f"a batch has from 1 to {MAX_BATCH} events, not {len(events)}")
        owner = acting_scope(caller, scope)
        drafts: dict[int, list[Draft]] = {}
        places: list[tuple[int, int]] = []
        for event in events:
            of_execution = drafts.setdefault(event.execution_id, [])
            places.append((event.execution_id, len(of_execution)))
            of_execution.append(self._keyed(event.draft))
        appended = await self._append(
            caller,
            AppendRequest(
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                streams=tuple(
                    StreamAppend(execution_id=execution_id, drafts=tuple(of_execution))
                    for execution_id, of_execution in drafts.items()
                ),
                producer=f"urn:noetl:user:{caller.name}",
            ),
        )
        starts, start = {}, 0
        for execution_id, of_execution in drafts.items():
            starts[execution_id] = start
            start += len(of_execution)
        return tuple(appended[starts[execution_id] + index] for execution_id, index in places)

    def _keyed(self, draft: Draft) -> Draft:
        """Who gives no key wants a new event each time."""
        return draft if draft.idempotency_key else replace(draft, idempotency_key=self._make_key())
