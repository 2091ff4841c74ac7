"""Looks for executions that the list of streams does not have: one row that is lost would hide a whole history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from noetl_core.evidence.findings import Finding
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import LiveExecution, LiveExecutions
from noetl_core.ports.streams import HiddenStream, HiddenStreams, StreamHead, Streams

CODE: Final = "stream.missing"
_LOOKED_AT: Final = 2000
_PAGE: Final = 1000


class Evidence(Streams, HiddenStreams, Protocol):
    """What is asked of the log."""


async def find_hidden(
    evidence: Evidence, rows: LiveExecutions, scope: Scope | None, heads: Sequence[StreamHead]
) -> dict[int, Finding]:
    """What events or live rows there are of executions that are not among these heads, which were listed before."""
    known = {head.execution_id for head in heads}
    by_events = [one async for one in _by_events(evidence, scope) if one.execution_id not in known]
    found = {one.execution_id: _told(one) for one in by_events}
    async for live in _by_rows(rows, scope):
        if live.execution_id in known or live.execution_id in found:
            continue
        # It may have been started since: then there is a head by now.
        if await evidence.find_stream(scope, live.execution_id) is None:
            stand = (
                f"live rows of it for {live.tenant_id}/{live.organization_id} stand at version {live.stream_version}"
            )
            found[live.execution_id] = Finding(code=CODE, message=f"{stand}, and the log has no stream of it")
    return found


async def _by_events(evidence: HiddenStreams, scope: Scope | None) -> AsyncIterator[HiddenStream]:
    after: int | None = 0
    while after is not None:
        page = await evidence.list_hidden(scope, after=after, limit=_LOOKED_AT)
        for one in page.hidden:
            yield one
        after = page.following


async def _by_rows(rows: LiveExecutions, scope: Scope | None) -> AsyncIterator[LiveExecution]:
    """Not tenant by tenant: of one that lost its only stream nothing else knows the name."""
    after: int | None = 0
    while after is not None:
        page = await rows.list_live(scope, after=after, limit=_PAGE)
        for one in page.executions:
            yield one
        after = page.following


def _told(one: HiddenStream) -> Finding:
    what = "a head that names another tenant or organization" if one.has_head else "no head"
    message = f"the log has events of it for {one.tenant_id}/{one.organization_id}, and {what}"
    return Finding(code=CODE, message=message)
