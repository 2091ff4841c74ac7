"""States at any point of a history, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from noetl_core.canonical import decode
from noetl_core.ids import parse_id
from noetl_core.replay.points import Point
from noetl_core.timestamps import to_utc
from noetl_servicekit.code_version import code_version
from pydantic import BaseModel, Field

from noetl_api.application.replay_state import ReplayPage, ReplayQuery
from noetl_api.application.resolve_payloads import ResolvedPayload
from noetl_api.entrypoints.http.dependencies import (
    CallerOf,
    PageSize,
    PageToken,
    ScopeOf,
    UseCasesOf,
    only_known_parameters,
)

router = APIRouter(prefix="/api/replay", tags=["replay"])


class ResolvedPayloadOut(BaseModel):
    """What became of a payload that the history refers to."""

    sha256: str
    uri: str
    media_type: str | None
    uses: int
    status: str = Field(description="verified, present (too large to be read on the way), missing or corrupt.")
    stored_bytes: int

    @classmethod
    def of(cls, one: ResolvedPayload) -> ResolvedPayloadOut:
        return cls(
            sha256=one.use.sha256,
            uri=one.use.uri,
            media_type=one.use.media_type or None,
            uses=one.use.uses,
            status=one.status,
            stored_bytes=one.stored_bytes,
        )


class ReplayedStateOut(BaseModel):
    """A page of the state of an execution at a point; checksums are those of the whole state."""

    execution_id: str
    tenant_id: str
    organization_id: str
    stream_version: int = Field(description="Position of the last event that counts.")
    event_id: str
    reached_at: datetime | None = Field(description="When that event was taken into the log.")
    event_checksum: str
    head_version: int
    format: int
    upcasters: str = Field(description="Digest of the registry by which old events were read.")
    code_version: str = Field(description="Release of the core that folded, and a digest of its sources.")
    snapshot_version: int = Field(description="Where the replay began; 0 is the start.")
    projection_checksums: dict[str, str]
    row_counts: dict[str, int]
    checksum: str
    payload_root: str
    payload_count: int
    rows: dict[str, list[dict[str, Any]]]
    payloads: list[ResolvedPayloadOut] | None = None
    next_page_token: str = Field(description="Empty when this page is the last.")

    @classmethod
    def of(cls, page: ReplayPage, *, resolved: bool) -> ReplayedStateOut:
        known, replayed = page.known, page.known.replayed
        state = replayed.state
        rows: dict[str, list[dict[str, Any]]] = {}
        for one in page.rows:
            row: Any = decode(one.row)
            rows.setdefault(str(one.surface), []).append(row)
        return cls(
            execution_id=str(state.execution.execution_id),
            tenant_id=state.execution.tenant_id,
            organization_id=state.execution.organization_id,
            stream_version=state.stream_version,
            event_id=str(state.last_event_id),
            reached_at=replayed.reached_at,
            event_checksum=replayed.checksum,
            head_version=page.head_version,
            format=page.format,
            upcasters=replayed.upcasters,
            code_version=code_version(),
            snapshot_version=known.snapshot_version,
            projection_checksums=dict(known.checksums),
            row_counts={str(surface): len(keys) for surface, keys in known.order.items()},
            checksum=known.checksum,
            payload_root=known.payload_root,
            payload_count=known.payload_count,
            rows=rows,
            payloads=[ResolvedPayloadOut.of(one) for one in page.payloads] if resolved else None,
            next_page_token=page.next_page_token,
        )


@router.get("/state", dependencies=[Depends(only_known_parameters)])
async def state(
    *,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    execution_id: Annotated[str, Query(description="The execution; a 63-bit number as digits.")],
    as_of_event_id: Annotated[str | None, Query(description="After this event.")] = None,
    as_of_position: Annotated[int | None, Query(ge=1, description="After the event with this version.")] = None,
    as_of_time: Annotated[
        datetime | None, Query(description="After what the log had taken at this time, by its own clock.")
    ] = None,
    projection: Annotated[str, Query(description="A surface, all, or none for checksums alone.")] = "all",
    resolve_payloads: Annotated[bool, Query(description="Whether to look for all payloads as well.")] = False,
    from_start: Annotated[bool, Query(description="Fold every event, whatever snapshots there are.")] = False,
    page_size: PageSize = 0,
    page_token: PageToken = "",
) -> ReplayedStateOut:
    """The state of an execution at any point, folded from its log, with the checksums of all its surfaces."""
    page = await use_cases.replay_state(
        caller,
        scope,
        ReplayQuery(
            execution_id=parse_id(execution_id, what="execution_id"),
            point=Point(
                event_id=0 if as_of_event_id is None else parse_id(as_of_event_id, what="as_of_event_id"),
                stream_version=as_of_position or 0,
                time=to_utc(as_of_time, what="as_of_time") if as_of_time else None,
            ),
            projection=projection,
            resolve_payloads=resolve_payloads,
            from_start=from_start,
            page_size=page_size,
            page_token=page_token,
        ),
    )
    return ReplayedStateOut.of(page, resolved=resolve_payloads)
