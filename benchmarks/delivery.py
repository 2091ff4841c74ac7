"""From the commit of an event to a consumer on the bus that has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from noetl_adapters.nats.connection import NatsConnection
from noetl_adapters.nats.consumers import ConsumerSpec
from noetl_adapters.nats.pull_consumer import NatsPullConsumer
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import EventLogClient
from noetl_contracts.subjects import EVENTS_STREAM, STREAM_VERSION, event_subject
from noetl_core.sharding import shard_of

from benchmarks.drafts import ORGANIZATION, TENANT, new_execution_ids, one_event, start_requests
from benchmarks.figures import Figure, latency_figures
from benchmarks.stack import Stack

_SHARD_COUNT = 64
_WARM_UP = 30
_PATIENCE_SECONDS = 10.0
_GROUP = "Commit to consumer, one event at a time"


async def measure_delivery(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """One append after another; the next begins when the last was delivered."""
    await stack.settle()
    addresses = stack.addresses
    (execution_id,) = await new_execution_ids(addresses.owner_dsn, 1)
    appends, from_call, from_return = [], [], []
    async with open_channel(addresses.api, token=addresses.service_token) as channel:
        log = EventLogClient(channel)
        for request in start_requests([execution_id]):
            await log.append(request)
        async with _arrivals(addresses.nats_url, execution_id) as arrivals:
            ends_at = time.perf_counter() + seconds
            number = 0
            while time.perf_counter() < ends_at or number <= _WARM_UP:
                called_at = time.perf_counter()
                (appended,) = await log.append(one_event(execution_id, key=f"delivery/{number}"))
                returned_at = time.perf_counter()
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    arrived_at = await _arrival(arrivals, appended.event.stream_version)
                if number >= _WARM_UP:
                    appends.append(returned_at - called_at)
                    from_call.append(arrived_at - called_at)
                    from_return.append(arrived_at - returned_at)
                number += 1
    say(f"{len(appends)} events delivered")
    return [
        *latency_figures(_GROUP, "append call", appends),
        *latency_figures(_GROUP, "from the append's return to the consumer", from_return),
        *latency_figures(_GROUP, "from before the append's call to the consumer", from_call),
    ]


async def _arrival(arrivals: asyncio.Queue[tuple[int, float]], version: int) -> float:
    while True:
        arrived, at = await arrivals.get()
        if arrived == version:
            return at


@asynccontextmanager
async def _arrivals(nats_url: str, execution_id: int) -> AsyncIterator[asyncio.Queue[tuple[int, float]]]:
    """Versions of the execution's events as a consumer gets them, with the moment at which it did."""
    arrivals: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
    subject = event_subject(
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        execution_id=execution_id,
        shard=shard_of(execution_id, _SHARD_COUNT),
    )
    spec = ConsumerSpec(stream=EVENTS_STREAM, durable="benchmark", subjects=(subject,), inactive_seconds=60.0)
    async with NatsConnection(nats_url, name="benchmark") as connection:
        await connection.wait_connected(timeout_seconds=_PATIENCE_SECONDS)
        consumer = NatsPullConsumer(connection, spec)
        await consumer.set_subjects((subject,))  # it exists before the first event is appended

        async def consume() -> None:
            while True:
                deliveries = await consumer.fetch(batch=100, wait_seconds=5.0)
                now = time.perf_counter()
                for delivery in deliveries:
                    arrivals.put_nowait((int(delivery.headers[STREAM_VERSION]), now))
                await consumer.ack(deliveries)

        consuming = asyncio.create_task(consume())
        try:
            yield arrivals
        finally:
            consuming.cancel()
            with suppress(asyncio.CancelledError):
                await consuming
            await consumer.close()
