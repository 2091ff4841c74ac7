"""Payloads and lineage over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import grpc
from noetl.payload.v1 import payload_pb2 as pb
from noetl.payload.v1 import payload_pb2_grpc as pb_grpc
from noetl_core.append import Fence
from noetl_core.collection.report import CollectionReport
from noetl_core.errors import Corrupt
from noetl_core.lineage import Trace
from noetl_core.payload_streams import verified
from noetl_core.payloads import PayloadPart, PayloadRef, verify_part
from noetl_core.ports.event_log import Scope

from noetl_contracts.channel import NO_DEADLINE
from noetl_contracts.mapping import payloads as mapping
from noetl_contracts.mapping.events import fence_message, scope_message
from noetl_contracts.mapping.payloads import KnownPayload
from noetl_contracts.status import raising_noetl_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPayload:
    """A payload on its way; its pieces are verified here once more, so that a reader at the end has the right bytes."""

    payload: KnownPayload
    chunks: AsyncIterator[bytes]


class PayloadClient:
    """Shows payloads and where results came from; served by api."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout: float = 10.0) -> None:
        self._stub: pb_grpc.PayloadServiceAsyncStub = pb_grpc.PayloadServiceStub(channel)
        self._timeout = timeout

    async def stat(self, scope: Scope | None, locator: str) -> KnownPayload:
        """What is known of a payload."""
        request = pb.StatRequest(scope=scope_message(scope), locator=locator)
        with raising_noetl_errors():
            return mapping.payload((await self._stub.Stat(request, timeout=self._timeout)).payload)

    async def fetch(self, scope: Scope | None, locator: str) -> FetchedPayload:
        """What is known of a payload, and its bytes."""
        messages = self._messages(scope, locator)
        async for first in messages:
            known = mapping.payload(first.payload)
            return FetchedPayload(payload=known, chunks=verified(known.ref, _data(messages)))
        raise Corrupt(f"the server ended before it told what {locator} is")

    async def get(self, ref: PayloadRef) -> bytes:
        """All bytes of a payload of the caller's own, verified: what a payload store does."""
        fetched = await self.fetch(None, ref.uri)
        return b"".join([chunk async for chunk in fetched.chunks])

    async def attach(self, ref: PayloadRef) -> memoryview:
        """The same, for who reads bytes in place."""
        return memoryview(await self.get(ref))

    async def get_part(self, ref: PayloadRef, part: PayloadPart) -> bytes:
        """Some of the bytes, verified; the server gives all from the beginning, and is left when they have come."""
        data = bytearray()
        async with aclosing(self._messages(None, ref.uri)) as messages:
            async for message in messages:
                data += message.data
                if len(data) >= part.stop:
                    break
        return verify_part(ref, part, bytes(data[part.start : part.stop]))

    async def trace(self, scope: Scope | None, execution_id: int, step: str, *, at_version: int = 0) -> Trace:
        """The result of a step, the one that it was made from, and so on."""
        request = pb.TraceRequest(
            scope=scope_message(scope), execution_id=str(execution_id), step=step, at_version=at_version
        )
        with raising_noetl_errors():
            return mapping.trace(await self._stub.Trace(request, timeout=self._timeout))

    async def collect(
        self, scope: Scope | None, *, apply: bool, grace_seconds: float = 0.0, fence: Fence | None = None
    ) -> AsyncIterator[CollectionReport]:
        """Collect what no event reaches, or see what would be collected; the last report has the phase `done`."""
        request = pb.CollectRequest(
            scope=scope_message(scope), apply=apply, grace_seconds=grace_seconds, fence=fence_message(fence)
        )
        with raising_noetl_errors():
            async for message in self._stub.Collect(request, timeout=NO_DEADLINE):
                yield mapping.collection_report(message)

    async def _messages(self, scope: Scope | None, locator: str) -> AsyncGenerator[pb.FetchResponse, None]:
        request = pb.FetchRequest(scope=scope_message(scope), locator=locator)
        with raising_noetl_errors():
            async for message in self._stub.Fetch(request, timeout=NO_DEADLINE):
                yield message


async def _data(messages: AsyncIterator[pb.FetchResponse]) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message.data
