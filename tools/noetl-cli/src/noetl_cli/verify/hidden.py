"""Looks for executions that the list of streams does not have: one row that is lost would hide a whole history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final, Protocol

from noetl_core.errors import InvalidInput
from noetl_core.evidence.findings import Finding
from noetl_core.ports.event_log import Scope
from noetl_core.ports.projections import ExecutionPage, ExecutionView
from noetl_core.ports.streams import HiddenStream, HiddenStreams, StreamHead, Streams

CODE: Final = "stream.missing"
_LOOKED_AT: Final = 2000
_PAGE: Final = 1000


class Evidence(Streams, HiddenStreams, Protocol):
    """What is asked of the log."""


class Executions(Protocol):
    """What is asked of projections."""

    async def list(self, scope: Scope | None, *, page_size: int, page_token: str) -> ExecutionPage:
        """Executions, newest first."""
        ...


async def find_hidden(
    evidence: Evidence, executions: Executions, scope: Scope | None, heads: Sequence[StreamHead]
) -> dict[int, Finding]:
    """What events or live rows there are of executions that are not among these heads, which were listed before."""
    known = {head.execution_id for head in heads}
    by_events = [one async for one in _by_events(evidence, scope) if one.execution_id not in known]
    found = {one.execution_id: _told(one) for one in by_events}
    named: list[StreamHead | HiddenStream] = [*heads, *by_events]
    whose = {Scope(tenant_id=one.tenant_id, organization_id=one.organization_id) for one in named}
    async for view in _by_rows(executions, {scope} if scope is not None else whose):
        if view.execution_id in known or view.execution_id in found:
            continue
        # It may have been started since: then there is a head by now.
        if await evidence.find_stream(scope, view.execution_id) is None:
            told = f"live rows of it stand at version {view.stream_version}, and the log has no stream of it"
            found[view.execution_id] = Finding(code=CODE, message=told)
    return found


async def _by_events(evidence: HiddenStreams, scope: Scope | None) -> AsyncIterator[HiddenStream]:
    after: int | None = 0
    while after is not None:
        page = await evidence.list_hidden(scope, after=after, limit=_LOOKED_AT)
        for one in page.hidden:
            yield one
        after = page.following


async def _by_rows(executions: Executions, whose: Collection[Scope]) -> AsyncIterator[ExecutionView]:
    """Of tenants that the log names; where it names nobody, of the caller's."""
    for scope in whose or (None,):
        token = ""
        while True:
            try:
                page = await executions.list(scope, page_size=_PAGE, page_token=token)
            except InvalidInput:
                if scope is not None:
                    raise
                return  # a caller for any tenant, and there is none
            for view in page.executions:
                yield view
            token = page.next_page_token
            if not token:
                break


def _told(one: HiddenStream) -> Finding:
    what = "a head that names another tenant or organization" if one.has_head else "no head"
    message = f"the log has events of it for {one.tenant_id}/{one.organization_id}, and {what}"
    return Finding(code=CODE, message=message)
