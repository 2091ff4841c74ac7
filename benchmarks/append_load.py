"""A client process that appends through gRPC; it only moves bytes that were spelt before."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

import grpc

from benchmarks.clients import Timing, begin_together
from benchmarks.drafts import encoded_requests

_METHOD = "/noetl.event.v1.EventService/Append"
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendJob:
    """How much to append, where, and with how many requests in flight."""

    address: str
    token: str = field(repr=False)
    execution_ids: tuple[int, ...]
    key_prefix: str
    requests: int
    drafts_per_request: int
    in_flight: int


def append(job: AppendJob) -> Timing:
    """Runs in a process of its own."""
    requests = encoded_requests(
        job.execution_ids,
        key_prefix=job.key_prefix,
        requests=job.requests,
        drafts_per_request=job.drafts_per_request,
    )
    return asyncio.run(_append_all(job, deque(requests)))


async def _append_all(job: AppendJob, waiting: deque[bytes]) -> Timing:
    metadata = (("authorization", f"Bearer {job.token}"),)
    async with grpc.aio.insecure_channel(job.address) as channel:
        # Bytes in, bytes out: what the typed client would spend on messages belongs to no measurement.
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)

        async def writer() -> None:
            while waiting:
                await method(waiting.popleft(), timeout=_TIMEOUT_SECONDS, metadata=metadata)

        await channel.channel_ready()
        begin_together()
        begun = time.monotonic()
        await asyncio.gather(*(writer() for _ in range(job.in_flight)))
        ended = time.monotonic()
    return Timing(events=job.requests * job.drafts_per_request, begun=begun, ended=ended)
