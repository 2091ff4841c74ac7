"""What executions wait for, over gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import grpc
from noetl.why.v1 import why_pb2 as pb
from noetl.why.v1 import why_pb2_grpc as pb_grpc
from noetl_core.ports.event_log import Scope
from noetl_core.why import Reason

from noetl_contracts.mapping import why as mapping
from noetl_contracts.mapping.events import scope_message
from noetl_contracts.mapping.times import moment
from noetl_contracts.status import raising_noetl_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedExecution:
    """What an execution waits for, as of one of its versions."""

    execution_id: int
    status: str
    stream_version: int
    as_of: datetime
    reasons: tuple[Reason, ...]


class WhyClient:
    """Explains executions; served by api."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 10.0) -> None:
        self._stub: pb_grpc.WhyServiceAsyncStub = pb_grpc.WhyServiceStub(channel)
        self._timeout = timeout

    async def explain(self, scope: Scope | None, execution_id: int) -> ExplainedExecution:
        """What it waits for, most pressing first."""
        request = pb.ExplainRequest(scope=scope_message(scope), execution_id=str(execution_id))
        with raising_noetl_errors():
            response = await self._stub.Explain(request, timeout=self._timeout)
        return ExplainedExecution(
            execution_id=int(response.execution_id),
            status=response.status,
            stream_version=response.stream_version,
            as_of=moment(response.as_of),
            reasons=tuple(mapping.reason(one) for one in response.reasons),
        )
