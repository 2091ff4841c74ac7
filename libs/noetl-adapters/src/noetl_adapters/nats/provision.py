"""Makes the streams what this release needs them to be; any number of replicas may do it at once."""

from __future__ import annotations

from collections.abc import Sequence

from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError
from nats.js.manager import JetStreamManager
from noetl_contracts.subjects import STREAMS, StreamSpec
from noetl_core.errors import Rejected

from noetl_adapters.nats.client import NatsClient
from noetl_adapters.nats.connection import translated

API_TIMEOUT_SECONDS = 2.0


class StreamMismatch(Rejected):
    """A stream exists and cannot be changed into what is needed."""

    code = "bus.stream_mismatch"


async def provision_streams(client: NatsClient, streams: Sequence[StreamSpec] = STREAMS, *, replicas: int = 1) -> None:
    """Create what is missing and correct what differs; what an operator has added to a stream is kept."""
    manager = client.jsm(timeout=API_TIMEOUT_SECONDS)
    async with translated():
        for spec in streams:
            await _provision(manager, spec, replicas)


async def _provision(manager: JetStreamManager, spec: StreamSpec, replicas: int) -> None:
    wanted = _config(spec)
    try:
        current = (await manager.stream_info(spec.name)).config
    except NotFoundError:
        # Another replica that creates the same stream at this moment gets the same answer.
        await manager.add_stream(wanted.evolve(num_replicas=replicas))
        return
    corrected = current.evolve(
        subjects=wanted.subjects, max_age=wanted.max_age, duplicate_window=wanted.duplicate_window
    )
    if (current.retention, current.storage) != (wanted.retention, wanted.storage):
        raise StreamMismatch(
            f"stream {spec.name} is {current.retention}/{current.storage}, "
            f"needed is {wanted.retention}/{wanted.storage}; it must be removed by hand",
            stream=spec.name,
        )
    if corrected == current:
        return
    try:
        await manager.update_stream(corrected)
    except BadRequestError as exc:
        raise StreamMismatch(f"stream {spec.name} cannot be updated: {exc.description}", stream=spec.name) from exc


def _config(spec: StreamSpec) -> StreamConfig:
    return StreamConfig(
        name=spec.name,
        subjects=list(spec.subjects),
        retention=RetentionPolicy.WORK_QUEUE if spec.work_queue else RetentionPolicy.LIMITS,
        storage=StorageType.MEMORY if spec.in_memory else StorageType.FILE,
        max_age=spec.max_age_seconds,
        duplicate_window=spec.duplicate_window_seconds,
    )
