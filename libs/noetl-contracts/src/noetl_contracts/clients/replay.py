"""States at any point of a history, over gRPC: whole, however many pages they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import grpc
from noetl.replay.v1 import replay_pb2 as pb
from noetl.replay.v1 import replay_pb2_grpc as pb_grpc
from noetl_core.canonical import decode
from noetl_core.errors import Conflict
from noetl_core.ports.event_log import Scope
from noetl_core.replay.points import Point
from noetl_core.surfaces.shapes import Surface

from noetl_contracts.mapping.events import scope_message
from noetl_contracts.mapping.times import moment, timestamp
from noetl_contracts.status import raising_noetl_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPayload:
    """What became of a payload: verified, present, missing or corrupt."""

    sha256: str
    uri: str
    media_type: str
    uses: int
    status: str
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedState:
    """The state of an execution at a point, as api has replayed it."""

    execution_id: int
    tenant_id: str
    organization_id: str
    stream_version: int
    event_id: str
    reached_at: datetime
    event_checksum: str
    head_version: int
    format: int
    upcasters: str
    snapshot_version: int
    surfaces: Mapping[str, str]
    row_counts: Mapping[str, int]
    checksum: str
    payload_root: str
    payload_count: int
    rows: Mapping[Surface, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    payloads: Sequence[ResolvedPayload] = ()
    code_version: str = ""
    """Of the core that folded; empty if an older release answered."""


class ReplayClient:
    """Asks api; a replay of a long history takes its time."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 300.0) -> None:
        self._stub: pb_grpc.ReplayServiceAsyncStub = pb_grpc.ReplayServiceStub(channel)
        self._timeout = timeout

    async def state(
        self,
        scope: Scope | None,
        execution_id: int,
        point: Point,
        *,
        projection: str = "all",
        resolve_payloads: bool = False,
        from_start: bool = False,
    ) -> ReplayedState:
        """All pages as one state; `projection` none gives its checksums alone, `from_start` uses no snapshot.

        Raises `Conflict` if they are of several states: the log went on differently, or other code answered.
        """
        request = pb.GetStateRequest(
            scope=scope_message(scope),
            execution_id=str(execution_id),
            projection=projection,
            resolve_payloads=resolve_payloads,
            from_start=from_start,
            page_size=1000,
        )
        if point.event_id:
            request.as_of_event_id = str(point.event_id)
        elif point.stream_version:
            request.as_of_position = point.stream_version
        elif point.time is not None:
            request.as_of_time.CopyFrom(timestamp(point.time))
        rows: dict[Surface, dict[str, Mapping[str, Any]]] = {surface: {} for surface in Surface}
        payloads: list[ResolvedPayload] = []
        first: pb.GetStateResponse | None = None
        while True:
            with raising_noetl_errors():
                response = await self._stub.GetState(request, timeout=self._timeout)
            first = first or response
            if (response.checksum, response.event_checksum) != (first.checksum, first.event_checksum):
                raise Conflict(f"pages of the state of execution {execution_id} are of several histories: ask anew")
            for one in response.rows:
                row: Any = decode(one.row)
                rows[Surface(one.surface)][one.key] = row
            payloads += [_payload(one) for one in response.payloads]
            if not response.next_page_token:
                return _state(response, rows, payloads)
            request.page_token = response.next_page_token


def _payload(one: pb.ResolvedPayload) -> ResolvedPayload:
    return ResolvedPayload(
        sha256=one.sha256,
        uri=one.uri,
        media_type=one.media_type,
        uses=one.uses,
        status=one.status,
        stored_bytes=one.stored_bytes,
    )


def _state(
    response: pb.GetStateResponse,
    rows: Mapping[Surface, Mapping[str, Mapping[str, Any]]],
    payloads: Sequence[ResolvedPayload],
) -> ReplayedState:
    return ReplayedState(
        execution_id=int(response.execution_id),
        tenant_id=response.tenant_id,
        organization_id=response.organization_id,
        stream_version=response.stream_version,
        event_id=response.event_id,
        reached_at=moment(response.reached_at),
        event_checksum=response.event_checksum,
        head_version=response.head_version,
        format=response.format,
        upcasters=response.upcasters,
        snapshot_version=response.snapshot_version,
        surfaces=dict(response.surfaces),
        row_counts=dict(response.row_counts),
        checksum=response.checksum,
        payload_root=response.payload_root,
        payload_count=response.payload_count,
        rows=rows,
        payloads=payloads,
        code_version=response.code_version,
    )
