"""After the end of a run: is every event published once, and do the projections say what the log does?"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from noetl_contracts.subjects import EVENTS_STREAM
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
            *_messages(name, await _published(client, execution_id), len(events)),
            *_projection(name, None if row is None else json.loads(row), execution_id, events),
        ]


async def _published(client: Client, execution_id: int) -> int:
    try:
        wanted = f"noetl.events.*.*.{execution_id}.*"
        info = await client.jetstream().stream_info(EVENTS_STREAM, subjects_filter=wanted)
    except (NatsError, OSError, TimeoutError):
        return 0  # away; asked again
    subjects: Any = info.state.subjects or {}
    return sum(subjects.values())


def _messages(name: str, published: int, events: int) -> Iterator[str]:
    if published != events:
        yield f"{name}: {published} messages for {events} events"


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
