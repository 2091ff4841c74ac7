"""NATS takes every message of an execution, the last one included, and gives none of them to anybody."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import nats
from nats.aio.client import Client
from noetl_cli.connection import Server, connected
from noetl_cli.dev.nats import NatsNode
from noetl_cli.dev.sql import fetch_value
from noetl_cli.follow.watching import watch_through_outages
from noetl_contracts.subjects import EVENTS_STREAM
from noetl_core.envelope import StoredEvent
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

REPAIRED_SECONDS = 15.0
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: unheard, path: tests/unheard}
workflow:
- {step: first, tool: {kind: noop}, next: {arcs: [{step: last}]}}
- {step: last, tool: {kind: noop}}
"""


@asynccontextmanager
async def nothing_delivered(stack: LocalStack) -> AsyncIterator[Client]:
    """Nobody is given an event; at the end those that came meanwhile are gone, and all others flow again."""
    ports = json.loads(stack.home.ports_file.read_text(encoding="utf-8"))
    node = NatsNode(directory=stack.home.root / "nats", port=ports["nats"], monitoring_port=ports["nats.monitoring"])
    client = await nats.connect(node.url)
    try:
        await pause(client, until=datetime.now(UTC) + timedelta(hours=1))
        yield client
        await client.jetstream().purge_stream(EVENTS_STREAM)
        await pause(client, until=datetime(2000, 1, 1, tzinfo=UTC))
    finally:
        await client.close()


async def pause(client: Client, *, until: datetime) -> None:
    consumers = await client.jetstream().consumers_info(EVENTS_STREAM)
    assert consumers
    for one in consumers:
        subject = f"$JS.API.CONSUMER.PAUSE.{EVENTS_STREAM}.{one.name}"
        answer = await client.request(subject, json.dumps({"pause_until": until.isoformat()}).encode(), timeout=10)
        assert "error" not in json.loads(answer.data), answer.data


async def run_unheard(stack: LocalStack) -> list[StoredEvent]:
    """The history of an execution that ended while nobody heard of it, once its messages are lost."""
    endpoint = stack.endpoint
    async with connected(Server(address=endpoint.address, token=endpoint.token)) as clients, nothing_delivered(stack):
        await clients.catalog.register(None, PLAYBOOK)
        started = await clients.executions.execute(None, path="tests/unheard")
        history: list[StoredEvent] = []
        async for batch in watch_through_outages(clients.events, started.execution_id):
            history += batch
        await asyncio.to_thread(lambda: eventually(lambda: outbox_is_empty(stack), seconds=60.0))
        return history


def outbox_is_empty(stack: LocalStack) -> bool:
    return bool(fetch_value(stack.owner_dsn, "SELECT count(*) = 0 FROM noetl.outbox"))


def test_what_nobody_was_told_of_is_found_in_the_log_within_seconds(stack: LocalStack) -> None:
    history = asyncio.run(run_unheard(stack))
    began = time.monotonic()

    last = history[-1]
    query = "SELECT stream_version FROM noetl.execution WHERE execution_id = $1"
    eventually(
        lambda: fetch_value(stack.owner_dsn, query, last.envelope().execution_id) == last.stream_version, seconds=90.0
    )

    assert time.monotonic() - began < REPAIRED_SECONDS
    types = [event.envelope().event_type for event in history]
    assert (types[-1], types.count("command.completed")) == ("playbook.completed", 2)
