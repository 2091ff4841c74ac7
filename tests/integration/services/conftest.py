"""An api replica in this process, over a database of its own, and clients for everybody who may call it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from noetl_api.bootstrap import start
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import (
    CatalogClient,
    CredentialClient,
    EventLogClient,
    ExecutionClient,
    PayloadClient,
    ShardClient,
)
from noetl_servicekit.process_settings import ProcessSettings
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.tokens import token_sha256

CALLERS = {
    "service": ("*", "*", "service"),
    "root": ("acme", "ops", "admin"),
    "ada": ("acme", "ops", "writer"),
    "rita": ("acme", "ops", "reader"),
    "sam": ("acme", "sales", "writer"),
    "rival": ("rival", "ops", "writer"),
}
"""Name, which is also the token's text, to tenant, organization and role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """One caller's clients of one replica."""

    events: EventLogClient
    catalog: CatalogClient
    executions: ExecutionClient
    shards: ShardClient
    credentials: CredentialClient
    payloads: PayloadClient
    http: httpx.AsyncClient


class RunningApi:
    """A replica that serves, and a way to call it as anybody."""

    def __init__(self, group: ServiceGroup, ports: Mapping[str, int], stack: AsyncExitStack) -> None:
        self.group = group
        self.grpc_address = f"127.0.0.1:{ports['grpc']}"
        self.http_url = f"http://127.0.0.1:{ports['http']}"
        self.ops_url = f"http://127.0.0.1:{ports['ops']}"
        self._stack = stack

    async def channel(self, token: str | None) -> grpc.aio.Channel:
        return await self._stack.enter_async_context(open_channel(self.grpc_address, token=token))

    async def stop(self) -> None:
        """What a signal does; clients stay connected."""
        self.group.stop("the test says so")
        await self.group.close()

    async def as_(self, name: str) -> Clients:
        channel = await self.channel(name)
        http = httpx.AsyncClient(
            base_url=self.http_url, headers={"Authorization": f"Bearer {name}"}, timeout=30.0, trust_env=False
        )
        return Clients(
            events=EventLogClient(channel),
            catalog=CatalogClient(channel),
            executions=ExecutionClient(channel),
            shards=ShardClient(channel),
            credentials=CredentialClient(channel),
            payloads=PayloadClient(channel),
            http=await self._stack.enter_async_context(http),
        )


@pytest.fixture
def api_values(api_dsn: str, tmp_path: Path) -> dict[str, str]:
    """The environment of an api process whose projector is not there."""
    tokens = [
        {
            "name": name,
            "token_sha256": token_sha256(name),
            "tenant_id": tenant,
            "organization_id": organization,
            "role": role,
        }
        for name, (tenant, organization, role) in CALLERS.items()
    ]
    tokens_file = tmp_path / "tokens.json"
    tokens_file.write_text(json.dumps({"tokens": tokens}))
    return {
        "NOETL_POSTGRES_DSN": api_dsn,
        "NOETL_PAYLOAD_URL": (tmp_path / "payloads").as_uri(),
        "NOETL_PROJECTOR_ADDRESS": "127.0.0.1:1",
        "NOETL_TOKEN": "service",
        "NOETL_TOKENS_FILE": str(tokens_file),
        "NOETL_PLAYBOOK_ENV": "REGION",
        "REGION": "north",
        "SECRET": "not for playbooks",
        "NOETL_STOP_SECONDS": "4",
        "PATH": os.environ["PATH"],
    }


RunApi = Callable[[], AbstractAsyncContextManager[RunningApi]]


@pytest.fixture
def run_api(api_values: dict[str, str], tmp_path: Path) -> RunApi:
    """Starts replicas over one database."""
    started = iter(range(100))

    @asynccontextmanager
    async def run() -> AsyncIterator[RunningApi]:
        ready_file = tmp_path / f"api-{next(started)}.json"
        values = {**api_values, "NOETL_READY_FILE": str(ready_file)}
        group = ServiceGroup(ProcessSettings.from_env("api", values))
        try:
            await start(group, values)
            async with AsyncExitStack() as stack:
                yield RunningApi(group, json.loads(ready_file.read_text())["ports"], stack)
        finally:
            group.stop("the test is over")
            await group.close()
        assert group.failure is None

    return run


@pytest.fixture
async def api(run_api: RunApi) -> AsyncIterator[RunningApi]:
    """One replica."""
    async with run_api() as running:
        yield running
