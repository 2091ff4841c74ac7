"""How far rows are behind the log while events come at a steady rate, and how soon a status is read meanwhile."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from urllib.request import urlopen

import grpc
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import EventLogClient
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.drafts import encoded_requests, new_execution_ids, start_requests
from benchmarks.figures import Figure, Goal, percentile, processor_figures
from benchmarks.stack import Stack
from benchmarks.status_reads import ReadJob, ReadTimes, read_status

EVENTS_A_SECOND = 2_000
LAG_GOAL = Goal(bound=100, at_least=False)
READ_GOAL = Goal(bound=10, at_least=False)
AGE_GOAL = Goal(bound=1_500, at_least=False)
_EXECUTIONS = 100
_DRAFTS_A_REQUEST = 20
_METHOD = "/noetl.event.v1.EventService/Append"
_GROUP = f"Projection under {EVENTS_A_SECOND:,} events/s, {_EXECUTIONS} executions"


async def measure_projection(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """Append at a rate, read beside it, and ask the projector what it has seen."""
    await stack.settle()
    addresses = stack.addresses
    execution_ids = await new_execution_ids(addresses.owner_dsn, _EXECUTIONS)
    async with open_channel(addresses.api, token=addresses.service_token) as channel:
        log = EventLogClient(channel)
        for request in start_requests(execution_ids):
            await log.append(request)
    await stack.settle()
    idle = await _reading(stack, execution_ids, seconds / 2)
    before, used, own = _samples(stack), stack.processor_seconds(), time.process_time()
    reads, rate = await asyncio.gather(
        _reading(stack, execution_ids, seconds), _appending(stack, execution_ids, seconds=seconds)
    )
    spent, own = stack.processor_seconds_since(used), time.process_time() - own
    await stack.settle()
    await asyncio.sleep(1.5)  # the last barriers come a second later
    moved = {name: value - before.get(name, 0.0) for name, value in _samples(stack).items()}
    events = moved["noetl_projector_events_projected_total"]
    say(f"{rate:,.0f} events/s appended, {events:,.0f} events projected")
    return [
        Figure(group=_GROUP, name="appended", value=rate, unit="events/s"),
        *(
            Figure(
                group=_GROUP,
                name=f"projection lag {label}",
                value=_quantile(moved, "noetl_projection_lag_seconds", share) * 1000,
                unit="ms",
                goal=LAG_GOAL if label == "p95" else None,
                samples=round(moved["noetl_projection_lag_seconds_count"]),
            )
            for label, share in (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))
        ),
        *_read_figures("idle", idle, goal=None),
        *_read_figures("under load", reads, goal=READ_GOAL),
        Figure(
            group=_GROUP,
            name="age of what a barrier covers first, p99",
            value=_quantile(moved, "noetl_checkpoint_age_seconds", 0.99) * 1000,
            unit="ms",
            goal=AGE_GOAL,
        ),
        Figure(
            group=_GROUP,
            name="barrier rows for 1,000 events",
            value=moved["noetl_projector_barriers_total"] / events * 1000,
            unit="rows",
        ),
        Figure(
            group=_GROUP,
            name="checkpoint events for 1,000 events",
            value=moved["noetl_projector_checkpoints_told_total"] / events * 1000,
            unit="events",
        ),
        *processor_figures(_GROUP, "event", spent, round(rate * seconds)),
        # Beside the stack on the same processors: what is measured includes that they are not its alone.
        Figure(group=_GROUP, name="  and of who appends", value=own / (rate * seconds) * 1e6, unit="µs"),
    ]


def _read_figures(name: str, times: ReadTimes, *, goal: Goal | None) -> list[Figure]:
    return [
        Figure(
            group=_GROUP,
            name=f"status read {name}, {way}, {label}",
            value=percentile(values, share) * 1000,
            unit="ms",
            goal=goal if label == "p99" and values is not times.bare else None,
            samples=len(values),
        )
        for way, values in (
            ("through api", times.through_api),
            ("of the projector", times.of_projector),
            ("by bare processes", times.bare),
        )
        for label, share in (("p50", 0.50), ("p99", 0.99))
    ]


async def _reading(stack: Stack, execution_ids: Sequence[int], seconds: float) -> ReadTimes:
    job = ReadJob(
        api=stack.addresses.api,
        projector=stack.addresses.projector,
        token=stack.addresses.service_token,
        owner_dsn=stack.addresses.owner_dsn,
        execution_ids=tuple(execution_ids),
        seconds=seconds,
    )
    # Of its own, so that what waits for an answer is not what is busy appending.
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return await asyncio.get_running_loop().run_in_executor(executor, read_status, job)


async def _appending(stack: Stack, execution_ids: Sequence[int], *, seconds: float) -> float:
    """Send each request at its time, whatever became of those before; returns the rate that was answered."""
    count = round(EVENTS_A_SECOND * seconds / _DRAFTS_A_REQUEST)
    requests = encoded_requests(
        execution_ids, key_prefix=f"projection-{time.time_ns()}", requests=count, drafts_per_request=_DRAFTS_A_REQUEST
    )
    metadata = (("authorization", f"Bearer {stack.addresses.service_token}"),)
    async with grpc.aio.insecure_channel(stack.addresses.api) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)
        await channel.channel_ready()
        begun = time.monotonic()

        async def send(place: int, request: bytes) -> None:
            await asyncio.sleep(max(begun + place * _DRAFTS_A_REQUEST / EVENTS_A_SECOND - time.monotonic(), 0.0))
            await method(request, timeout=60.0, metadata=metadata)

        await asyncio.gather(*(send(place, request) for place, request in enumerate(requests)))
        return count * _DRAFTS_A_REQUEST / (time.monotonic() - begun)


def _samples(stack: Stack) -> dict[str, float]:
    """What the projector has counted; buckets of histograms as `name{le}`."""
    with urlopen(f"http://{stack.addresses.projector_ops}/metrics") as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            bound = f"{{{sample.labels['le']}}}" if "le" in sample.labels else ""
            if set(sample.labels) <= {"le"}:
                found[f"{sample.name}{bound}"] = sample.value
    return found


def _quantile(moved: Mapping[str, float], name: str, share: float) -> float:
    """As Prometheus does it: evenly spread within a bucket."""
    prefix = f"{name}_bucket{{"
    counts = sorted((float(key[len(prefix) : -1]), value) for key, value in moved.items() if key.startswith(prefix))
    wanted = counts[-1][1] * share if counts else 0.0
    for (lower, below), (upper, up_to) in pairwise([(0.0, 0.0), *counts]):
        if up_to >= wanted and up_to > below:
            return lower if upper == float("inf") else lower + (upper - lower) * (wanted - below) / (up_to - below)
    return 0.0
