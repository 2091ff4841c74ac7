"""Snapshots over gRPC."""

from __future__ import annotations

import grpc
from noetl.projection.v1 import projection_pb2 as pb
from noetl.projection.v1 import projection_pb2_grpc as pb_grpc
from noetl_core.errors import NotFound
from noetl_core.ports.event_log import Scope
from noetl_core.replay.snapshots import Rules, Snapshot

from noetl_contracts.mapping import snapshots as mapping
from noetl_contracts.mapping.events import scope_message
from noetl_contracts.status import raising_noetl_errors


class SnapshotClient:
    """Asks projectors, whose they are; port `FetchSnapshots`."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 30.0) -> None:
        self._stub: pb_grpc.ProjectionServiceAsyncStub = pb_grpc.ProjectionServiceStub(channel)
        self._timeout = timeout

    async def fetch(
        self, scope: Scope | None, execution_id: int, *, at_or_below: int, rules: Rules
    ) -> tuple[Snapshot, list[bytes]] | None:
        """The newest that these rules have made, with its parts as they came; None if there is none."""
        request = pb.GetSnapshotRequest(
            scope=scope_message(scope),
            execution_id=str(execution_id),
            at_or_below=at_or_below,
            rules=mapping.rules_message(rules),
        )
        snapshot: Snapshot | None = None
        parts: list[bytes] = []
        try:
            with raising_noetl_errors():
                async for message in self._stub.GetSnapshot(request, timeout=self._timeout):
                    if message.WhichOneof("content") == "snapshot":
                        snapshot = mapping.snapshot(message.snapshot)
                    else:
                        parts.append(message.part)
        except NotFound:
            return None
        return None if snapshot is None else (snapshot, parts)
