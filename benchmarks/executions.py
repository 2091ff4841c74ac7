"""One execution of a playbook, from the call to its terminal event."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl_contracts.channel import open_channel
from noetl_contracts.clients import CatalogClient, CredentialClient, EventLogClient, ExecutionClient
from noetl_core.ports.credentials import Credential
from noetl_core.ports.event_log import Scope

from benchmarks.drafts import ORGANIZATION, TENANT
from benchmarks.stack import Stack

SCOPE = Scope(tenant_id=TENANT, organization_id=ORGANIZATION)
_HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: NAME, path: benchmarks/NAME}\n"


@dataclass(frozen=True, slots=True)
class Told:
    """An event: what it is called, and when the database took it."""

    event_type: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What an execution told."""

    execution_id: int
    seconds: float
    events: Sequence[Told]

    def first(self, event_type: str) -> float:
        """When the first event of a type was told."""
        return next(told.seconds for told in self.events if told.event_type == event_type)

    @property
    def stage_seconds(self) -> float:
        """From the opening of its stage to its end; one without a frame is no measurement, however fast."""
        if not any(told.event_type == "frame.committed" for told in self.events):
            raise RuntimeError(f"execution {self.execution_id} has committed no frame: there is nothing to measure")
        return self.first("stage.closed") - self.first("stage.opened")


async def run_playbook(
    stack: Stack, name: str, document: str, payload: Mapping[str, Any], *, timeout: float = 900.0
) -> Execution:
    """Register a document, run it, and read all of its events; raises if it does not complete."""
    addresses = stack.addresses
    async with open_channel(addresses.api, token=addresses.service_token) as channel:
        registered = await CatalogClient(channel).register(SCOPE, _HEAD.replace("NAME", name) + document)
        begun = time.perf_counter()
        started = await ExecutionClient(channel).execute(SCOPE, path=registered.entry.path, payload=payload)
        events: list[Told] = []
        async for seen in EventLogClient(channel).watch(SCOPE, started.execution_id, timeout=timeout):
            events += (Told(one.envelope().event_type, one.ingest_time.timestamp()) for one in seen.events)
        if events[-1].event_type != "playbook.completed":
            raise RuntimeError(f"execution {started.execution_id} ended with {events[-1].event_type}")
        return Execution(execution_id=started.execution_id, seconds=time.perf_counter() - begun, events=events)


async def put_database(stack: Stack, name: str) -> None:
    """Have playbooks reach the stack's own database as its owner, under the name of a credential."""
    addresses = stack.addresses
    async with open_channel(addresses.api, token=addresses.service_token) as channel:
        credential = Credential(name=name, type="postgres", data={"dsn": addresses.owner_dsn})
        await CredentialClient(channel).put(SCOPE, credential)
