"""Appends what callers ask for, as far as their role allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from noetl_contracts.subjects import CONTROL_SUBJECTS, WORK_SUBJECTS
from noetl_core.append import Appended, AppendRequest
from noetl_core.business_objects.events import AGGREGATE, META_KEY, new_change
from noetl_core.envelope import EXECUTION_AGGREGATE, Draft
from noetl_core.errors import InvalidInput, NotPermitted
from noetl_core.events import is_reserved
from noetl_core.ports.event_log import EventLog
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.tracing import current_traceparent

USER_KEYS: Final = "user/"
"""Before every key that a user chooses, so that it cannot take one that NoETL needs, such as execution/end."""

RESERVED_META: Final = frozenset({"decided_through", "loop_id", "epoch_id", "request_sha256"})
_HINT_PREFIXES: Final = (WORK_SUBJECTS.removesuffix(">"), CONTROL_SUBJECTS.removesuffix(">"))


class AppendEvents:
    """The one write path, for services and for users."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def __call__(self, caller: Caller, request: AppendRequest) -> tuple[Appended, ...]:
        """Append all of the request or nothing. Its scope must be one that the caller may act for."""
        caller.require(Role.WRITER)
        if not caller.sees(request.tenant_id, request.organization_id):
            raise NotPermitted(f"{caller.name!r} belongs to another tenant or organization")
        if not caller.may(Role.SERVICE):
            request = _as_user(caller, request)
        for hint in request.hints:
            if not hint.subject.startswith(_HINT_PREFIXES):
                raise InvalidInput(f"hints are published below noetl.work or noetl.control, not on {hint.subject!r}")
        return await self._log.append(_traced(request))


def _as_user(caller: Caller, request: AppendRequest) -> AppendRequest:
    if request.fences or request.hints:
        raise NotPermitted("fences and hints are for services")
    if any(stream.start is not None for stream in request.streams):
        raise NotPermitted("executions are started by Execute, not by appending to them")
    return replace(
        request,
        producer=f"urn:noetl:user:{caller.name}",
        streams=tuple(
            replace(stream, drafts=tuple(_user_draft(draft) for draft in stream.drafts)) for stream in request.streams
        ),
    )


def _user_draft(draft: Draft) -> Draft:
    if is_reserved(draft.event_type):
        raise NotPermitted(
            f"events of type {draft.event_type!r} are written by NoETL itself", event_type=draft.event_type
        )
    if META_KEY in draft.meta:
        change = new_change(draft.meta[META_KEY])
        draft = replace(draft, aggregate_type=AGGREGATE, aggregate_id=change.key)
    elif draft.aggregate_type != EXECUTION_AGGREGATE:
        raise NotPermitted(f"aggregates of type {draft.aggregate_type!r} belong to NoETL itself")
    taken = RESERVED_META & draft.meta.keys()
    if taken:
        raise InvalidInput(f"{sorted(taken)} in the meta of an event have a meaning to NoETL itself")
    if not draft.idempotency_key:  # before the prefix makes it look like one
        raise InvalidInput(f"{draft.event_type} has no idempotency key")
    return replace(draft, idempotency_key=USER_KEYS + draft.idempotency_key)


def _traced(request: AppendRequest) -> AppendRequest:
    """Drafts that name no trace belong to the caller's."""
    trace = current_traceparent()
    if trace is None or all(draft.trace for stream in request.streams for draft in stream.drafts):
        return request
    streams = tuple(
        replace(
            stream,
            drafts=tuple(draft if draft.trace else replace(draft, trace=trace) for draft in stream.drafts),
        )
        for stream in request.streams
    )
    return replace(request, streams=streams)
