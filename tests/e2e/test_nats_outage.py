"""NATS is down for twenty seconds: appends go on, and afterwards the bus has everything, in order."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy
from noetl_cli.dev.nats import NatsNode
from noetl_cli.dev.sql import fetch_value
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import EventLogClient, ExecutionClient
from noetl_contracts.subjects import EVENTS_STREAM, STREAM_VERSION
from noetl_core.append import AppendRequest, StreamAppend
from noetl_core.envelope import Draft
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

OUTAGE_SECONDS = 20.0


async def append_for(stack: LocalStack, seconds: float) -> tuple[int, int]:
    """Start an execution that waits, and append to it again and again; returns its id and how often that went well."""
    endpoint = stack.endpoint
    async with open_channel(endpoint.address, token=endpoint.token) as channel:
        log, executions = EventLogClient(channel), ExecutionClient(channel)
        started = await executions.execute(None, path="tests/outage")
        deadline = time.monotonic() + seconds
        appended = 0
        while time.monotonic() < deadline:
            draft = Draft(event_type="user.note", idempotency_key=f"note/{appended}")
            stream = StreamAppend(execution_id=started.execution_id, drafts=(draft,))
            await log.append(AppendRequest(tenant_id="default", organization_id="default", streams=(stream,)))
            appended += 1
            await asyncio.sleep(0.02)
    return started.execution_id, appended


async def delivered_versions(stack: LocalStack, execution_id: int, wanted: int) -> list[int]:
    """What the bus has of an execution, in its order."""
    ports = json.loads(stack.home.ports_file.read_text(encoding="utf-8"))
    node = NatsNode(directory=stack.home.root / "nats", port=ports["nats"], monitoring_port=ports["nats.monitoring"])
    client = await nats.connect(node.url)
    try:
        subscription = await client.jetstream().pull_subscribe(
            f"noetl.events.*.*.{execution_id}.*",
            stream=EVENTS_STREAM,
            config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL),
        )
        versions: list[int] = []
        while len(versions) < wanted:
            for message in await subscription.fetch(200, timeout=30):
                versions.append(int((message.headers or {})[STREAM_VERSION]))
                await message.ack()
        return versions
    finally:
        await client.close()


def test_appends_go_on_while_nats_is_down_and_everything_drains_afterwards(stack: LocalStack, tmp_path: Path) -> None:
    playbook = tmp_path / "outage.yaml"
    playbook.write_text(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: outage, path: tests/outage}\n"
        "workflow:\n- {step: a, tool: {kind: noop}}\n"
    )
    assert stack.noetl("catalog", "register", str(playbook)).code == 0
    with stack.held_down("nats"):
        execution_id, appended = asyncio.run(append_for(stack, OUTAGE_SECONDS))
        waiting = fetch_value(stack.owner_dsn, "SELECT count(*) FROM noetl.outbox")

    assert appended > 100, "appends go on"
    assert waiting >= appended, "and wait in the outbox"
    eventually(lambda: fetch_value(stack.owner_dsn, "SELECT count(*) FROM noetl.outbox") == 0, seconds=60.0)
    ended = stack.noetl("events", str(execution_id), "--follow", "--timeout", "60", "-o", "json")
    assert ended.code == 0, ended
    head = ended.lines[-1]["stream_version"]
    eventually(lambda: fetch_value(stack.owner_dsn, "SELECT count(*) FROM noetl.outbox") == 0, seconds=60.0)
    versions = asyncio.run(delivered_versions(stack, execution_id, head))
    assert versions == list(range(1, head + 1)), "each once, in order"
