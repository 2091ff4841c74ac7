"""The configuration that `noetl deploy nats` writes, run for real: two clusters on loopback that work as one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, Placement, StreamConfig
from nats.js.errors import ServiceUnavailableError
from noetl_cli.deploy.nats_config import as_text
from noetl_cli.deploy.supercluster import PASSWORDS, Cluster, Places, Topology, environment, server_config
from noetl_cli.dev.nats import nats_binary
from noetl_cli.dev.ports import free_port
from noetl_testkit.until import until

SECRETS = {name: f"secret-{index}" for index, name in enumerate(PASSWORDS)}
EU, US = Cluster(name="eu", servers=1), Cluster(name="us", servers=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Where the servers of a test are."""

    clients: dict[str, int]
    monitors: dict[str, int]

    def monitored(self, cluster: str, page: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitors[cluster]}/{page}", timeout=5) as answer:
            return dict(json.load(answer))

    @asynccontextmanager
    async def client(self, cluster: str) -> AsyncIterator[Client]:
        address = f"nats://noetl:{SECRETS[PASSWORDS[0]]}@127.0.0.1:{self.clients[cluster]}"
        connection = await nats.connect(address, max_reconnect_attempts=-1)
        try:
            yield connection
        finally:
            await connection.close()


@contextmanager
def running(topology: Topology, directory: Path) -> Iterator[Running]:
    """One server for each cluster, each told by its own configuration where the others are."""
    names = [cluster.name for cluster in topology.clusters]
    client, monitor, route, gateway, leaf = ({name: free_port() for name in names} for _ in range(5))
    joined = gateway if topology.layout == "gateways" else leaf
    with ExitStack() as stack:
        for cluster in topology.clusters:
            home = directory / cluster.name
            home.mkdir()
            places = Places(
                host="127.0.0.1",
                client_port=client[cluster.name],
                monitoring_port=monitor[cluster.name],
                cluster_port=route[cluster.name],
                gateway_port=gateway[cluster.name],
                leaf_port=leaf[cluster.name],
                store_directory=str(home),
                routes=[f"127.0.0.1:{route[cluster.name]}"],
                others={name: f"127.0.0.1:{joined[name]}" for name in names if name != cluster.name},
            )
            file = home / "nats.conf"
            file.write_text(as_text(server_config(topology, cluster, places)), encoding="utf-8")
            password = SECRETS[PASSWORDS[2]]
            peers = {
                name: value.replace(f"$({PASSWORDS[2]})", password)
                for name, value in environment(topology, places).items()
            }
            stack.enter_context(_server(cluster.name, file, {**SECRETS, **peers}))
        yield Running(clients=client, monitors=monitor)


@contextmanager
def _server(name: str, config: Path, variables: dict[str, str]) -> Iterator[None]:
    with (config.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(nats_binary()), "--config", str(config), "--name", f"nats-{name}-0"],
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            finally:
                process.kill()
                process.wait()


def test_both_layouts_are_configurations_that_the_server_accepts(tmp_path: Path) -> None:
    for layout in ("gateways", "leafnodes"):
        topology = Topology(layout=layout, clusters=(Cluster(name="eu", servers=3), US))
        for cluster in topology.clusters:
            places = Places(
                routes=["a:6222", "b:6222", "c:6222"][: cluster.servers],
                others={one.name: "other:7222" for one in topology.clusters if one is not cluster},
            )
            file = tmp_path / f"{layout}-{cluster.name}.conf"
            file.write_text(as_text(server_config(topology, cluster, places)), encoding="utf-8")
            checked = subprocess.run(
                [str(nats_binary()), "-c", str(file), "-t"],
                env={**os.environ, **SECRETS, **environment(topology, places)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert checked.returncode == 0, checked.stderr


async def test_events_of_one_cluster_are_consumed_in_the_other_through_gateways(tmp_path: Path) -> None:
    with running(Topology(layout="gateways", clusters=(EU, US)), tmp_path) as servers:
        for here, there in (("eu", "us"), ("us", "eu")):
            await until(partial(_gateway_is_up, servers, here, there))
        async with servers.client("eu") as eu, servers.client("us") as us:
            stream = StreamConfig(name="EVENTS", subjects=["noetl.events.>"], placement=Placement(cluster="eu"))
            await _once_there_is_a_leader(lambda: eu.jetstream().add_stream(stream))
            for number in range(50):
                await eu.jetstream().publish("noetl.events.default", str(number).encode())

            consumer = await us.jetstream().pull_subscribe(
                "noetl.events.>", durable="elsewhere", stream="EVENTS", config=ConsumerConfig()
            )
            received: list[int] = []
            async with asyncio.timeout(60):
                while len(received) < 50:
                    try:
                        messages = await consumer.fetch(50, timeout=30)
                    except ServiceUnavailableError:  # the consumer is there, and the gateway has not heard of it yet
                        await asyncio.sleep(0.05)
                        continue
                    for message in messages:
                        received.append(int(message.data))
                        await message.ack()

        assert received == list(range(50))


async def test_a_leaf_keeps_its_own_domain_and_reaches_the_hub(tmp_path: Path) -> None:
    with running(Topology(layout="leafnodes", clusters=(EU, US)), tmp_path) as servers:
        await until(lambda: _leaf_is_up(servers, "eu"))
        async with servers.client("us") as leaf:
            at_home, at_hub = leaf.jetstream(), leaf.jetstream(domain="eu")
            await at_home.add_stream(name="EVENTS", subjects=["leaf.events.>"])
            await _once_there_is_a_leader(lambda: at_hub.add_stream(name="EVENTS", subjects=["hub.events.>"]))
            await at_hub.publish("hub.events.a", b"to the hub")

            assert (await at_hub.stream_info("EVENTS")).state.messages == 1
            assert (await at_home.stream_info("EVENTS")).state.messages == 0


async def _once_there_is_a_leader(attempt: Any) -> None:
    """JetStream of several servers answers only when they have elected somebody."""
    async with asyncio.timeout(60):
        while True:
            try:
                await attempt()
            except (nats.errors.Error, TimeoutError):
                await asyncio.sleep(0.2)
            else:
                return


def _gateway_is_up(servers: Running, here: str, there: str) -> bool:
    try:
        page = servers.monitored(here, "gatewayz")
    except OSError:
        return False
    return there in page.get("outbound_gateways", {}) and bool(page.get("inbound_gateways", {}).get(there))


def _leaf_is_up(servers: Running, hub: str) -> bool:
    try:
        return bool(servers.monitored(hub, "leafz").get("leafs"))
    except OSError:
        return False
