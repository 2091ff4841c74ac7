import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from noetl_core.errors import Corrupt, Unavailable
from noetl_core.ports.upkeep import Keep, Upkeep
from noetl_servicekit.env import Address
from noetl_servicekit.health import Health
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.process_settings import ProcessSettings
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.supervision import Backoff, Beat
from noetl_testkit.until import until


def settings(**values: str) -> ProcessSettings:
    return ProcessSettings.from_env("desk", {"NOETL_INSTANCE": "desk-0", **values})


def files_in(directory: Path) -> list[str]:
    return [file.name for file in directory.iterdir()]


@pytest.fixture
async def group() -> AsyncIterator[ServiceGroup]:
    group = ServiceGroup(settings(), metrics=MetricSet(), backoff=Backoff(first_seconds=0.0))
    yield group
    group.stop("the test is over")
    await group.close()


async def test_parts_are_stopped_in_the_reverse_order_of_their_start(group: ServiceGroup) -> None:
    said: list[str] = []

    @asynccontextmanager
    async def part(name: str) -> AsyncIterator[str]:
        said.append(f"{name} up")
        yield name
        said.append(f"{name} down")

    async def body(beat: Beat) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            said.append("loop down")

    async def flush() -> None:
        said.append("flushed")

    assert await group.enter(part("pool")) == "pool"
    group.on_stop(flush)
    group.loop("drain", body)
    await group.enter(part("server"))
    await asyncio.sleep(0)  # the loop begins
    group.stop("done")
    await group.close()

    assert said == ["pool up", "server up", "server down", "loop down", "flushed", "pool down"]
    assert group.failure is None


async def test_every_part_is_stopped_though_one_fails_to(group: ServiceGroup) -> None:
    stopped: list[str] = []

    async def stop_well() -> None:
        stopped.append("first")

    async def stop_badly() -> None:
        raise RuntimeError("odd")

    group.on_stop(stop_well)
    group.on_stop(stop_badly)

    with pytest.raises(RuntimeError, match="odd"):
        await group.close()
    assert stopped == ["first"]


async def test_a_loop_is_healthy_while_it_beats_and_forgotten_when_it_ends(group: ServiceGroup) -> None:
    beaten = asyncio.Event()

    async def body(beat: Beat) -> None:
        beat()
        beaten.set()
        await asyncio.Event().wait()

    group.loop("drain", body, max_silence_seconds=60)
    assert not group.health.report().ready
    await beaten.wait()
    assert group.health.report().ready

    await group.close()
    assert group.health.report().checks == ()


async def test_a_loop_that_fails_takes_the_process_down(group: ServiceGroup) -> None:
    async def body(beat: Beat) -> None:
        raise Corrupt("bytes differ")

    group.loop("drain", body)
    async with asyncio.timeout(60):
        await group.stopping.wait()

    assert isinstance(group.failure, Corrupt)
    assert not group.health.report().ready


async def test_a_loop_that_is_unlucky_does_not(group: ServiceGroup) -> None:
    recovered = asyncio.Event()
    rounds = 0

    async def body(beat: Beat) -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 3:
            raise Unavailable("away")
        recovered.set()
        await asyncio.Event().wait()

    group.loop("drain", body)
    await recovered.wait()

    assert group.metrics.value("noetl_loop_restarts_total", loop="drain") == 2
    assert not group.stopping.is_set()


async def test_a_loop_that_drains_finishes_its_round(group: ServiceGroup) -> None:
    started, settled = asyncio.Event(), []

    async def body(beat: Beat) -> None:
        while not group.stopping.is_set():
            started.set()
            await asyncio.sleep(0)
        settled.append("last batch")

    group.loop("drain", body, drains=True)
    await started.wait()
    group.stop("done")
    await group.close()

    assert settled == ["last batch"]


async def test_the_ready_file_names_the_ports_and_goes_with_the_process(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    group = ServiceGroup(settings(NOETL_READY_FILE=str(path)), metrics=MetricSet())
    address = await group.serve_ops(Address(host="127.0.0.1", port=0))
    group.ready(ops=address)

    document = json.loads(path.read_text())
    assert document["service"] == "desk"
    assert document["instance"] == "desk-0"
    assert document["addresses"] == {"ops": str(address)}
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://127.0.0.1:{document['ports']['ops']}/health/ready")
    assert answer.json() == {"status": "ready", "checks": {}}

    group.stop("done")
    await group.close()
    assert files_in(tmp_path) == []


async def test_the_first_reason_to_stop_counts(group: ServiceGroup) -> None:
    group.fail(Corrupt("bytes differ"))
    group.fail(ValueError("later"))
    group.stop("later still")

    assert isinstance(group.failure, Corrupt)


async def test_an_upkeep_that_fails_is_tried_again_and_one_that_hangs_makes_the_process_unready() -> None:
    now = 0.0
    group = ServiceGroup(settings(), metrics=MetricSet(), health=Health(clock=lambda: now))
    times, hangs = asyncio.Semaphore(0), asyncio.Event()
    hangs.set()

    async def tidy_up() -> None:
        times.release()
        await hangs.wait()
        raise OSError("no room")

    def is_ready() -> bool:
        return group.health.report().ready

    @asynccontextmanager
    async def part(keep: Keep) -> AsyncIterator[str]:
        keep(Upkeep(name="tidy", every_seconds=0.0, once=tidy_up))
        yield "part"

    assert await group.enter_kept(part) == "part"
    async with asyncio.timeout(60):
        for _ in range(3):
            await times.acquire()
        assert is_ready()

        hangs.clear()
        await until(times.locked)
        now += 31.0
        assert not is_ready()

        hangs.set()
        await until(is_ready)
    group.stop("done")
    await group.close()
    assert group.failure is None
