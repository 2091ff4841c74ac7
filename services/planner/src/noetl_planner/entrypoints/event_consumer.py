"""Events from the bus to the actors. What gets lost here is found by the sweep over stream heads."""

from __future__ import annotations

from collections.abc import Callable

from noetl_contracts.messages import count_events, is_of_another_log, unpack_events
from noetl_contracts.subjects import STREAM_VERSION
from noetl_core.errors import NoetlError
from noetl_core.ports.bus import Delivery, PullConsumer
from noetl_servicekit.logging import get_logger

from noetl_planner.application.actors import Actors
from noetl_planner.telemetry import PlannerMetrics

logger = get_logger()

_BATCH = 500
_WAIT_SECONDS = 5.0
_EXECUTION_TOKEN = 4


async def consume_events(
    consumer: PullConsumer,
    actors: Actors,
    metrics: PlannerMetrics,
    *,
    log_branch: Callable[[], str],
    beat: Callable[[], None],
) -> None:
    """Hand events to their actors as they come; acknowledged at once, since the log keeps them."""
    while True:
        beat()
        deliveries = await consumer.fetch(batch=_BATCH, wait_seconds=_WAIT_SECONDS)
        for delivery in deliveries:
            if is_of_another_log(delivery.headers, log_branch()):
                metrics.foreign_messages.inc()
            else:
                hand_over(delivery, actors, metrics)
        if deliveries:
            await consumer.ack(deliveries)


def hand_over(delivery: Delivery, actors: Actors, metrics: PlannerMetrics) -> None:
    """To whom it concerns, unless it is known there; what is no event is counted and left."""
    try:
        execution_id = int(delivery.subject.split(".")[_EXECUTION_TOKEN])
        known = actors.known_version(execution_id)
        if 0 < int(delivery.headers.get(STREAM_VERSION, 0)) <= known:
            metrics.events_received.inc(count_events(delivery.headers))
            return  # most are what this planner has appended itself
        events = unpack_events(delivery.body, delivery.headers)
    except (NoetlError, ValueError, IndexError) as exc:
        metrics.decode_errors.inc()
        logger.warning("planner.undecodable_message", subject=delivery.subject, reason=str(exc))
        return
    metrics.events_received.inc(len(events))
    actors.take(execution_id, *(event for event in events if event.stream_version > known))
