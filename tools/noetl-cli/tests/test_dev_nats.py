import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from noetl_cli.dev.nats import EmbeddedNats, NatsNode
from noetl_cli.dev.ports import free_port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedNats]:
    node = NatsNode(directory=tmp_path / "nats", port=free_port(), monitoring_port=free_port())
    with EmbeddedNats(node) as server:
        yield server


async def test_acknowledged_messages_survive_a_killed_server(server: EmbeddedNats) -> None:
    client = await nats.connect(server.url)
    stream = client.jetstream()
    await stream.add_stream(name="EVENTS", subjects=["events.>"])
    await stream.publish("events.one", b"payload")
    await client.close()
    before = server.pid

    server.kill()
    assert not server.node.is_ready()
    await asyncio.to_thread(server.start)

    assert server.pid not in (None, before)
    client = await nats.connect(server.url)
    message = await client.jetstream().get_msg("EVENTS", 1)
    assert message.data == b"payload"
    assert client.max_payload == 8 * 1024 * 1024
    await client.close()


@pytest.mark.parametrize("login", [{}, {"auth_token": "guess"}])
def test_nobody_gets_in_without_the_token(server: EmbeddedNats, login: dict[str, str]) -> None:
    address = ("127.0.0.1", server.node.port)
    with socket.create_connection(address, timeout=5.0) as connection, connection.makefile("rwb") as lines:
        assert lines.readline().startswith(b"INFO ")
        lines.write(f"CONNECT {json.dumps(login)}\r\nPING\r\n".encode())
        lines.flush()

        assert lines.readline().startswith(b"-ERR")


def test_only_the_owner_reads_the_token(server: EmbeddedNats) -> None:
    for name in ("nats.conf", "nats.token"):
        assert (server.directory / name).stat().st_mode & 0o777 == 0o600


def test_every_message_is_synced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    for sync_always in (False, True):
        node = NatsNode(directory=tmp_path, port=1, monitoring_port=2, sync_always=sync_always)
        node.prepare()
        config = json.loads((tmp_path / "nats.conf").read_text())

        assert config["jetstream"].get("sync_interval") == ("always" if sync_always else None)
