"""api as a process of its own: started, stopped, misconfigured, and killed in the middle of its work."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from noetl_adapters.postgres.event_log import COPY_FROM_ROWS
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import EventLogClient
from noetl_core.errors import DeadlinePassed, Unavailable
from noetl_testkit.compliance.event_log import chain_holds, history, note, request, start
from noetl_testkit.eventually import eventually
from noetl_testkit.until import until

StartApi = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_api(api_values: dict[str, str], tmp_path: Path) -> Iterator[StartApi]:
    """Starts `python -m noetl_api`; every process is gone at the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def start_process(**changes: str) -> subprocess.Popen[bytes]:
        ready_file = tmp_path / "ready.json"
        ready_file.unlink(missing_ok=True)
        environment = {**api_values, "NOETL_READY_FILE": str(ready_file), **changes}
        with (tmp_path / "api.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "noetl_api"],
                env={**environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
                stderr=output,
            )
        processes.append(process)
        return process

    yield start_process
    for process in processes:
        process.kill()
        process.wait()


def address_of(ready_file: Path, process: subprocess.Popen[bytes]) -> str:
    def ready() -> bool:
        assert process.poll() is None, "api ended before it was ready"
        return ready_file.exists()

    eventually(ready, seconds=60)
    return str(json.loads(ready_file.read_text())["addresses"]["grpc"])


@asynccontextmanager
async def log_at(address: str) -> AsyncIterator[EventLogClient]:
    async with open_channel(address, token="service") as channel:
        yield EventLogClient(channel)


MUCH = 2 * COPY_FROM_ROWS
"""Drafts of one request, so that it is committed by copying them."""


class Writers:
    """Clients that append without a pause and remember what was acknowledged; every other one appends much at once."""

    def __init__(self, execution_ids: list[int], *, much: int = 1) -> None:
        self.acknowledged: dict[tuple[int, str], str] = {}
        self._execution_ids = execution_ids
        self._much = much
        self._stopped = False

    async def write(self, log: EventLogClient, writer: int) -> None:
        for number in range(1_000_000):
            execution_id = self._execution_ids[number % len(self._execution_ids)]
            keys = [f"{writer}/{number}/{place}" for place in range(self._much if writer % 2 else 1)]
            # What was not answered is asked again under its keys, as every client of the log does.
            while not self._stopped:
                try:
                    appended = await log.append(request(execution_id, *(note(key, meta={"n": number}) for key in keys)))
                except (Unavailable, DeadlinePassed):
                    await asyncio.sleep(0.01)
                    continue
                for key, one in zip(keys, appended, strict=True):
                    self.acknowledged[(execution_id, key)] = one.event.checksum
                break
            if self._stopped:
                return

    async def get_further(self, events: int) -> None:
        """Wait until so many more were acknowledged."""
        goal = len(self.acknowledged) + events
        await until(lambda: len(self.acknowledged) >= goal, seconds=60)

    def stop(self) -> None:
        self._stopped = True


async def test_a_killed_api_loses_nothing_that_it_acknowledged_and_doubles_nothing(
    start_api: StartApi, tmp_path: Path
) -> None:
    ready_file = tmp_path / "ready.json"
    process = start_api()
    address = await asyncio.to_thread(address_of, ready_file, process)
    async with log_at(address) as log:
        execution_ids = [await start(log) for _ in range(3)]
        writers = Writers(execution_ids, much=MUCH)
        writing = [asyncio.create_task(writers.write(log, number)) for number in range(16)]

        for _ in range(3):
            await writers.get_further(20 * MUCH)
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            process = start_api(NOETL_GRPC_LISTEN=address)
            await asyncio.to_thread(address_of, ready_file, process)
        await writers.get_further(20 * MUCH)
        writers.stop()
        await asyncio.gather(*writing)

        stored: dict[tuple[int, str], str] = {}
        for execution_id in execution_ids:
            events = await history(log, execution_id)
            assert chain_holds(events)
            for event in events[1:]:
                key = (execution_id, event.envelope().idempotency_key)
                assert key not in stored
                stored[key] = event.checksum

    assert len(writers.acknowledged) >= 80 * MUCH
    assert {key: stored.get(key) for key in writers.acknowledged} == writers.acknowledged
    # At most what was under way when it was stopped can be there without having been acknowledged, and all of it then.
    left = Counter((execution_id, key.rpartition("/")[0]) for execution_id, key in stored.keys() - writers.acknowledged)
    assert len(left) <= 16
    assert set(left.values()) <= {1, MUCH}


async def test_every_event_of_a_killed_api_is_in_the_outbox_once(
    start_api: StartApi, tmp_path: Path, installed_dsn: str
) -> None:
    process = start_api()
    address = await asyncio.to_thread(address_of, tmp_path / "ready.json", process)
    async with log_at(address) as log:
        writers = Writers([await start(log)])
        writing = [asyncio.create_task(writers.write(log, number)) for number in range(8)]
        await writers.get_further(100)
        process.kill()
        await asyncio.to_thread(process.wait)
        writers.stop()
        await asyncio.gather(*writing)

    connection = await asyncpg.connect(installed_dsn)
    try:
        events = await connection.fetch("SELECT stream_version FROM noetl.event ORDER BY stream_version")
        outbox = await connection.fetch("SELECT first_version, last_version FROM noetl.outbox ORDER BY outbox_id")
    finally:
        await connection.close()
    named = [version for first, last in outbox for version in range(first, last + 1)]
    assert named == [row["stream_version"] for row in events]


def test_a_signal_ends_it_cleanly(start_api: StartApi, tmp_path: Path) -> None:
    process = start_api()
    address_of(tmp_path / "ready.json", process)

    process.terminate()

    assert process.wait(30) == 0
    assert not (tmp_path / "ready.json").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"NOETL_SHARD_COUNT": "16"}, "this installation has 64 shards"),
        ({"NOETL_TOKENS_FILE": "/nowhere/tokens.json"}, "cannot be read"),
        ({"NOETL_POSTGRES_DSN": "", "NOETL_TOKEN": ""}, "NOETL_POSTGRES_DSN is not set"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_the_start(
    start_api: StartApi, tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    process = start_api(**changes)

    assert process.wait(60) == 2
    assert said in (tmp_path / "api.log").read_text()


def test_it_says_what_it_is() -> None:
    shown = subprocess.run([sys.executable, "-m", "noetl_api", "--help"], capture_output=True, text=True, check=True)

    assert "noetl-api" in shown.stdout
    assert "NOETL_" in shown.stdout
