"""After the end of a run: is every event published once, and do the projections say what the log does?"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from noetl_contracts.messages import count_events
from noetl_contracts.subjects import EVENTS_STREAM, STREAM_VERSION
from noetl_core.envelope import StoredEvent
from noetl_core.replay.history import Replay
from noetl_core.surfaces.execution_rows import routing_facts
from noetl_core.surfaces.shapes import Surface

from noetl_cli.dev.home import StackHome
from noetl_cli.dev.nats import NatsNode
from noetl_cli.dev.postgres import PostgresCluster
from noetl_cli.dev.sql import fetch_value
from noetl_cli.dev.stack import DATABASE

SETTLE_SECONDS: Final = 45.0
_POLL_SECONDS: Final = 0.1
_MESSAGES_AT_ONCE: Final = 500
_FETCH_SECONDS: Final = 10.0
_ROW = """\
SELECT json_build_object('stream_version', stream_version, 'status', status, 'state', state)::text
FROM noetl.execution WHERE execution_id = $1"""


class Settling:
    """Looks into the servers of a stack of our own."""

    def __init__(self, home: StackHome) -> None:
        ports = json.loads(home.ports_file.read_text(encoding="utf-8"))
        self._dsn = PostgresCluster(directory=home.root / "postgres", port=ports["postgres"]).dsn(DATABASE)
        self._nats = NatsNode(
            directory=home.root / "nats", port=ports["nats"], monitoring_port=ports["nats.monitoring"]
        )

    async def problems(self, histories: Mapping[str, Sequence[StoredEvent]]) -> list[str]:
        """What is still wrong when everything has had time to arrive."""
        deadline = time.monotonic() + SETTLE_SECONDS
        client = await nats.connect(self._nats.url, max_reconnect_attempts=-1, error_cb=_ignore)
        try:
            while True:
                found = [one for place, events in histories.items() for one in await self._of(client, place, events)]
                if not found or time.monotonic() > deadline:
                    return found
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            await client.close()

    async def _of(self, client: Client, place: str, events: Sequence[StoredEvent]) -> list[str]:
        execution_id = events[0].envelope().execution_id
        name = place or "the execution"
        row = await asyncio.to_thread(fetch_value, self._dsn, _ROW, execution_id)
        return [
            *_messages(name, await published_versions(client, execution_id), len(events)),
            *_projection(name, None if row is None else json.loads(row), execution_id, events),
        ]


async def published_versions(client: Client, execution_id: int) -> list[int]:
    """The versions that the bus has of an execution; neighbours share a message, which says how many they are."""
    versions: list[int] = []
    only_headers = ConsumerConfig(
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.NONE,
        headers_only=True,
        inactive_threshold=_FETCH_SECONDS,
    )
    try:
        subscription = await client.jetstream().pull_subscribe(
            f"noetl.events.*.*.{execution_id}.*", stream=EVENTS_STREAM, config=only_headers
        )
        try:
            left = (await subscription.consumer_info()).num_pending or 0
            while left > 0:
                messages = await subscription.fetch(min(left, _MESSAGES_AT_ONCE), timeout=_FETCH_SECONDS)
                left -= len(messages)
                for headers in (message.headers or {} for message in messages):
                    last = int(headers[STREAM_VERSION])
                    versions += range(last - count_events(headers) + 1, last + 1)
        finally:
            await subscription.unsubscribe()
    except (NatsError, OSError, TimeoutError):
        return []  # away; asked again
    return versions


def _messages(name: str, published: Sequence[int], events: int) -> Iterator[str]:
    if sorted(published) != list(range(1, events + 1)):
        yield f"{name}: {len(published)} events on the bus, {len(set(published))} different ones, of {events}"


def _projection(name: str, row: Any, execution_id: int, events: Sequence[StoredEvent]) -> Iterator[str]:
    if row is None or row["stream_version"] < events[-1].stream_version:
        yield f"{name}: its projection does not come"
        return
    replay = Replay(execution_id)
    replay.take(events)
    (expected,) = replay.result().rows[Surface.EXECUTION].values()
    if row["stream_version"] > events[-1].stream_version:  # what may follow an end came after we had looked
        return
    if row["status"] != expected["status"] or routing_facts(row["state"]) != expected["state"]:
        yield f"{name}: its projection differs from a replay of the log"


async def _ignore(_: Exception) -> None:
    """Whatever is wrong with the connection, it is tried again."""
