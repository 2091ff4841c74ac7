"""What a durable consumer must be like on the server, and how it is made so, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import BadRequestError, NotFoundError
from nats.js.manager import JetStreamManager
from noetl_core.errors import Rejected

from noetl_adapters.nats.client import NatsClient
from noetl_adapters.nats.connection import translated
from noetl_adapters.nats.provision import API_TIMEOUT_SECONDS, provision_streams

_STREAM_NOT_FOUND = 10059
_RESET_VERSION = (2, 14)
_CONSUMER_DOES_NOT_EXIST = 10149
_REMOVAL_SECONDS = (0.02, 0.1, 0.4)
_RESUME_OVERLAP = timedelta(seconds=1)


class ConsumerMismatch(Rejected):
    """A consumer exists under this name and cannot be changed into what is needed."""

    code = "bus.consumer_mismatch"


class Start(StrEnum):
    """Where a consumer begins that did not exist before."""

    ALL = "all"
    """With everything the stream has: also when it vanished and is made again."""
    NEW = "new"
    """With what is published from now on; made again, it resumes shortly before the last delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    """A durable consumer."""

    stream: str
    durable: str
    subjects: tuple[str, ...]
    start: Start = Start.NEW
    shared: bool = False
    """Whether several processes use it at once, as workers of a pool do."""
    max_ack_pending: int = 1_000
    ack_wait_seconds: float = 30.0
    inactive_seconds: float = 0.0
    """How long the server keeps it while nobody asks for messages; 0 means for ever."""


async def ensure_consumer(
    client: NatsClient, spec: ConsumerSpec, *, subjects: Sequence[str], last_delivery: datetime | None
) -> bool:
    """Create the consumer, or give an existing one these subjects and limits; returns whether it was there."""
    manager = client.jsm(timeout=API_TIMEOUT_SECONDS)
    async with translated():
        try:
            current = (await manager.consumer_info(spec.stream, spec.durable)).config
        except NotFoundError as exc:
            if exc.err_code == _STREAM_NOT_FOUND:
                await provision_streams(client)
            await _create(manager, spec, _new_config(spec, subjects, last_delivery))
            return False
        wanted = current.evolve(
            filter_subjects=sorted(subjects),
            max_ack_pending=spec.max_ack_pending,
            ack_wait=spec.ack_wait_seconds,
            inactive_threshold=spec.inactive_seconds or None,
        )
        try:
            if wanted != current:
                await manager.add_consumer(spec.stream, wanted)
        except BadRequestError as exc:
            raise ConsumerMismatch(
                f"consumer {spec.durable} of {spec.stream} cannot be updated: {exc.description}",
                stream=spec.stream,
                consumer=spec.durable,
            ) from exc
        return True


async def _create(manager: JetStreamManager, spec: ConsumerSpec, config: ConsumerConfig) -> None:
    """Make a consumer; one of its name that is just being removed is waited for."""
    for pause in _REMOVAL_SECONDS:
        try:
            await manager.add_consumer(spec.stream, config)
        except BadRequestError as exc:
            if exc.err_code != _CONSUMER_DOES_NOT_EXIST:
                raise
            await asyncio.sleep(pause)
        else:
            return
    await manager.add_consumer(spec.stream, config)


async def deliver_unacknowledged_again(client: NatsClient, spec: ConsumerSpec) -> None:
    """Have what a lost session took with it come again now and in order, before anything newer.

    Otherwise it would come when `ack_wait` is over, long after its successors; older servers cannot help that.
    """
    version = client.connected_server_version
    if (version.major, version.minor) >= _RESET_VERSION:
        async with translated():
            await client.jsm(timeout=API_TIMEOUT_SECONDS).reset_consumer(spec.stream, spec.durable)


async def delete_consumer(client: NatsClient, spec: ConsumerSpec) -> None:
    """Forget the place in the stream."""
    async with translated():
        with suppress(NotFoundError):
            await client.jsm(timeout=API_TIMEOUT_SECONDS).delete_consumer(spec.stream, spec.durable)


def _new_config(spec: ConsumerSpec, subjects: Sequence[str], last_delivery: datetime | None) -> ConsumerConfig:
    config = ConsumerConfig(
        name=spec.durable,
        durable_name=spec.durable,
        ack_policy=AckPolicy.EXPLICIT,
        filter_subjects=sorted(subjects),
        max_ack_pending=spec.max_ack_pending,
        ack_wait=spec.ack_wait_seconds,
        inactive_threshold=spec.inactive_seconds or None,
        deliver_policy=DeliverPolicy.ALL,
    )
    if spec.start is Start.ALL:
        return config
    if last_delivery is None:
        return config.evolve(deliver_policy=DeliverPolicy.NEW)
    # By time and not by number: a stream that was made again counts from 1.
    return config.evolve(deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=last_delivery - _RESUME_OVERLAP)
