"""Hints from the bus become claims; how many is decided by free slots, so a busy worker leaves them to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from noetl_core.canonical import decode
from noetl_core.errors import InvalidInput, NoetlError
from noetl_core.ids import parse_id, stage_id
from noetl_core.ports.bus import Delivery, PullConsumer
from noetl_core.ports.commands import CommandKey
from noetl_servicekit.logging import get_logger

from noetl_worker.application.running import BEATS_A_LEASE
from noetl_worker.application.slots import Slots
from noetl_worker.application.spark_stages import SparkStages
from noetl_worker.application.stage_jobs import StageHint

logger = get_logger()

_WAIT_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_LENDING_BATCH = 64
_LOOK_SECONDS = 1.0
"""How soon it is noticed that calls got further."""
_NEWS_SECONDS = 3.0
"""How often it is told at most how far calls are: each time is an event."""


async def pull_work(consumer: PullConsumer, slots: Slots, stages: SparkStages, *, beat: Callable[[], None]) -> None:
    """Take hints while there are free slots."""
    while True:
        beat()
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                free = await slots.wait_for_free()
        except TimeoutError:
            continue
        # A slot that is lent is for few of the hints: they are looked for among the others, which are put back.
        batch = max(free, _LENDING_BATCH) if slots.is_lending else free
        deliveries = await consumer.fetch(batch=batch, wait_seconds=_WAIT_SECONDS)
        if deliveries:
            await _claim(consumer, slots, stages, deliveries)


async def _claim(consumer: PullConsumer, slots: Slots, stages: SparkStages, deliveries: tuple[Delivery, ...]) -> None:
    """A hint is only a wake-up: it is done once the claim was answered, whatever the answer."""
    read = [(delivery, _hint(delivery)) for delivery in deliveries]
    on_spark = [hint for _, hint in read if isinstance(hint, StageHint) and stages.takes(hint)]
    hints = [(delivery, hint.key if isinstance(hint, StageHint) else hint) for delivery, hint in read]
    broken = [delivery for delivery, key in hints if key is None]
    readable = [delivery for delivery, key in hints if key is not None]
    if broken:
        await consumer.term(broken)
    try:
        elsewhere = {hint.key for hint in on_spark}
        unanswered = stages.take(on_spark)
        unanswered |= await slots.claim([key for _, key in hints if key is not None and key not in elsewhere])
    except NoetlError as exc:
        logger.warning("worker.claim_failed", reason=exc.message)
        await consumer.nak(readable, delay_seconds=_RETRY_SECONDS)
        return
    again = [delivery for delivery, key in hints if key in unanswered]
    if again:
        await consumer.nak(again, delay_seconds=_RETRY_SECONDS)
    await consumer.ack([delivery for delivery, key in hints if key is not None and key not in unanswered])


def _hint(delivery: Delivery) -> CommandKey | StageHint | None:
    try:
        hint = decode(delivery.body)
        if not isinstance(hint, dict):
            return None
        execution_id = parse_id(str(hint["execution_id"]))
        if "stage_id" in hint:
            return StageHint(
                execution_id=execution_id,
                stage_id=str(hint["stage_id"]),
                slot=int(str(hint["slot"])),
                engine=str(hint.get("engine", "")),
                step=str(hint.get("step", "")),
                tenant_id=str(hint.get("tenant_id", "")),
                organization_id=str(hint.get("organization_id", "")),
            )
        return CommandKey(execution_id=execution_id, command_id=str(hint["command_id"]))
    except (NoetlError, KeyError, ValueError):
        logger.warning("worker.undecodable_hint", subject=delivery.subject)
        return None


async def keep_alive(slots: Slots, *, every_seconds: float, beat: Callable[[], None]) -> None:
    """Heartbeats for everything that runs: frames when their policies say, commands together in rounds.

    A round comes sooner if a lease would not last so long, or if long calls got further.
    """
    beats, clock = slots.beats, asyncio.get_running_loop().time
    since = clock()
    async with asyncio.TaskGroup() as telling:
        while True:
            beat()
            beats.stop_unanswered()
            waited = clock() - since
            left = min(every_seconds, beats.shortest_lease_seconds / BEATS_A_LEASE) - waited
            is_round = left <= 0 or (waited >= _NEWS_SECONDS and beats.has_news)
            if is_round or beats.is_frame_due:
                for due in beats.take_due(is_round=is_round):
                    telling.create_task(beats.tell_of(due))
                since = clock() if is_round else since
            else:
                await beats.wait(min(left, _LOOK_SECONDS))


def on_cancelled(slots: Slots, stages: SparkStages | None = None) -> Callable[[bytes], Awaitable[None]]:
    """What to do when the bus says that an execution was cancelled."""

    async def receive(body: bytes) -> None:
        try:
            message = decode(body)
            execution_id = parse_id(str(message["execution_id"])) if isinstance(message, dict) else 0
        except (NoetlError, KeyError):
            logger.warning("worker.undecodable_hint", subject="cancel")
            return
        slots.cancel_execution(execution_id)
        if stages is not None:
            stages.cancel_execution(execution_id)

    return receive


def on_stopped(slots: Slots, stages: SparkStages | None = None) -> Callable[[bytes], Awaitable[None]]:
    """What to do when the bus says that an activation of a step has ended."""

    async def receive(body: bytes) -> None:
        try:
            message = decode(body)
            if not isinstance(message, dict):
                raise InvalidInput("not an object")
            execution_id, activation = parse_id(str(message["execution_id"])), message["activation"]
            step = message["step"]
        except (NoetlError, KeyError):
            logger.warning("worker.undecodable_hint", subject="stop")
            return
        if isinstance(step, str) and isinstance(activation, int):
            slots.stop_activation(execution_id, step=step, activation=activation)
            if stages is not None:
                stages.stop_stage(stage_id(execution_id=execution_id, step=step, activation=activation))

    return receive
