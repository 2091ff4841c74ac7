"""A whole stack in a temporary directory: PostgreSQL with fsync, NATS and six services, gone with its benchmark."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
from noetl_cli.dev.credentials import StackCredentials
from noetl_cli.dev.endpoint import LocalEndpoint
from noetl_cli.dev.files import last_lines
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.nats import NatsNode
from noetl_cli.dev.ports import release_ports
from noetl_cli.dev.postgres import PostgresCluster
from noetl_cli.dev.stack import DATABASE, components
from noetl_cli.dev.state import Phase, StackState
from noetl_cli.dev.supervisor import Supervisor
from noetl_core.errors import Unavailable

from benchmarks.processor_time import processor_seconds

SERVICES = ("api", "outbox-publisher", "planner", "projector", "reaper", "worker")
_START_SECONDS = 120.0
_QUIET_SHARE = 0.12
"""Of one processor, used by all parts together: what they need when nothing happens."""
_LOOK_SECONDS = 0.4
_LONGEST_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the parts of the stack are, for clients that may be processes of their own."""

    api: str
    service_token: str = field(repr=False)
    owner_dsn: str = field(repr=False)
    nats_url: str = field(repr=False)
    projector: str
    projector_ops: str


class Stack:
    """A running stack; it ends with this process, however that ends."""

    def __init__(self, home: StackHome) -> None:
        self.home = home
        ports = json.loads(home.ports_file.read_text(encoding="utf-8"))
        endpoint = LocalEndpoint.read(home)
        if endpoint is None:
            raise Unavailable("the stack did not say where it is")
        credentials = StackCredentials(directory=home.root / "secrets")
        nats = NatsNode(directory=home.root / "nats", port=ports["nats"], monitoring_port=ports["nats.monitoring"])
        self.addresses = Addresses(
            api=endpoint.address,
            service_token=credentials.service_token_file.read_text(encoding="utf-8").strip(),
            owner_dsn=PostgresCluster(directory=home.root / "postgres", port=ports["postgres"]).dsn(DATABASE),
            nats_url=nats.url,
            projector=f"127.0.0.1:{ports['projector.grpc']}",
            projector_ops=f"127.0.0.1:{ports['projector.ops']}",
        )

    def pid(self, component: str) -> int:
        """The process of one component, as it is now."""
        state = StackState.read(self.home.state_file)
        process = state.components[component].process if state is not None else None
        if process is None:
            raise Unavailable(f"{component} does not run")
        return process.pid

    async def settle(self) -> None:
        """Wait until everything that was appended has gone its way, so that nobody works on it any more."""
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        connection = await asyncpg.connect(self.addresses.owner_dsn)
        try:
            while await connection.fetchval("SELECT EXISTS (SELECT FROM noetl.outbox)"):
                _check(deadline, "the outbox did not become empty")
                await asyncio.sleep(0.05)
        finally:
            await connection.close()
        while await self._busy_share() > _QUIET_SHARE:
            _check(deadline, "the services did not come to rest")

    def processor_seconds(self) -> dict[str, float]:
        """What each part has used since its start."""
        return processor_seconds({part: self.pid(part) for part in (*SERVICES, "postgres", "nats")})

    def processor_seconds_since(self, before: Mapping[str, float]) -> dict[str, float]:
        """What each part has used since an earlier look."""
        return {part: seconds - before[part] for part, seconds in self.processor_seconds().items()}

    async def _busy_share(self) -> float:
        before = self.processor_seconds()
        await asyncio.sleep(_LOOK_SECONDS)
        return sum(self.processor_seconds_since(before).values()) / _LOOK_SECONDS

    @contextmanager
    def only_api(self) -> Iterator[None]:
        """The other services stand still, so that the write path has the machine for itself."""
        others = [self.pid(service) for service in SERVICES if service != "api"]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in others:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


@contextmanager
def running_stack(say: Callable[[str], None]) -> Iterator[Stack]:
    """Start everything, and remove it all at the end."""
    directory = Path(tempfile.mkdtemp(prefix="noetl-bench-"))
    directory.chmod(0o711)  # PostgreSQL may have to run as another user; what is inside is private by itself
    home = StackHome(root=directory / "stack")
    home.create()
    states: queue.SimpleQueue[StackState] = queue.SimpleQueue()
    # In this process, and not as `noetl dev up` does it: a benchmark that is killed takes its stack with it.
    supervisor = Supervisor(home=home, parts=components(home.root), listeners=[states.put])
    running = threading.Thread(target=supervisor.run, name="supervisor")
    try:
        running.start()
        begun = time.monotonic()
        _wait_ready(states, home)
        say(f"stack ready in {time.monotonic() - begun:.1f} s")
        yield Stack(home)
    finally:
        supervisor.request_stop()
        running.join()
        release_ports(home.ports_file)
        shutil.rmtree(directory, ignore_errors=True)


def _wait_ready(states: queue.SimpleQueue[StackState], home: StackHome) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            state = states.get(timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            raise Unavailable(f"the stack was not ready after {_START_SECONDS:g} s") from None
        if state.phase is Phase.READY:
            return
        if state.failed is not None:
            log = "\n".join(last_lines(home.log_file(state.failed.name), 20))
            raise Unavailable(f"{state.failed.name} failed: {state.failed.error}\n{log}")


def _check(deadline: float, reason: str) -> None:
    if time.monotonic() > deadline:
        raise Unavailable(f"{reason} within {_LONGEST_WAIT_SECONDS:g} s")
