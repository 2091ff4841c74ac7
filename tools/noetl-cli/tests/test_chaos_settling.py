"""What the bus has of an execution is counted by event, however many of them share a message."""

from __future__ import annotations

from pathlib import Path

import nats
from noetl_cli.chaos.settling import published_versions
from noetl_cli.dev.nats import EmbeddedNats, NatsNode
from noetl_cli.dev.ports import free_port
from noetl_contracts.messages import pack_events
from noetl_contracts.subjects import EVENTS_STREAM, EVENTS_SUBJECTS, event_subject
from noetl_testkit.histories import choices, drawn_history


async def test_each_event_on_the_bus_is_counted_alone_or_among_others_and_as_often_as_it_is_there(
    tmp_path: Path,
) -> None:
    stored = drawn_history(choices(1), moves=30).stored[:7]
    node = NatsNode(directory=tmp_path / "nats", port=free_port(), monitoring_port=free_port())
    with EmbeddedNats(node) as server:
        client = await nats.connect(server.url)
        try:
            assert await published_versions(client, 1) == [], "no stream yet"
            await client.jetstream().add_stream(name=EVENTS_STREAM, subjects=[EVENTS_SUBJECTS])
            for execution_id, run in (
                (1, stored[:1]),
                (1, stored[1:5]),
                (1, stored[5:]),
                (2, stored),
                (1, stored[2:4]),
            ):
                subject = event_subject(tenant_id="t", organization_id="o", execution_id=execution_id, shard=0)
                body, headers = pack_events(run, "")
                await client.jetstream().publish(subject, body, headers=headers)

            assert await published_versions(client, 1) == [1, 2, 3, 4, 5, 6, 7, 3, 4]
            assert await published_versions(client, 2) == list(range(1, 8))
            assert await published_versions(client, 3) == []
        finally:
            await client.close()
