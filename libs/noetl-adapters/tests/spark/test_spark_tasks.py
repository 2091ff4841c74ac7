"""Tasks that last, in a real session: one that stands still is ended alone, and executions share the seats."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from noetl_adapters.spark.driver_process import SparkDriver
from noetl_core.ports.spark import SparkEnd, SparkProgress, SparkSettings, SparkTasks, SparkWork
from noetl_testkit.until import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SEATS = 2
"""Of three threads."""
START_SECONDS = 400.0
SLICE_SECONDS = 0.5
# Each task leaves a note of its process. It ends when it may go, when it is told to die, or when its slice is over.
LASTING = """
import os, pathlib, time
def hold(common, share, task):
    place = pathlib.Path(common["directory"])
    name = "-".join(map(str, share))
    (place / f"new-{name}").write_text(str(os.getpid()))
    (place / f"new-{name}").rename(place / f"at-{name}")
    began = time.monotonic()
    while not (place / "go").exists():
        if (place / f"die-{name}").exists():
            os._exit(75)
        if time.monotonic() - began > common["seconds"]:
            break
        time.sleep(0.01)
    return {"share": share, "seconds": time.monotonic() - began, "left": common["left"]}
"""


class Session:
    """A session whose tasks hold seats."""

    def __init__(self, directory: Path) -> None:
        (directory / "lasting.py").write_text(LASTING)
        path = os.pathsep.join((str(directory), os.environ.get("PYTHONPATH", "")))
        settings = SparkSettings(master="local[3]", memory="512m", start_seconds=500)
        self.driver = SparkDriver(settings, environment={**os.environ, "PYTHONPATH": path}, reports=self)
        self.begun: list[str] = []

    def session(self, state: str) -> None:
        pass

    def began(self) -> None:
        pass

    def ended(self, outcome: str) -> None:
        pass

    def progress(self, call: SparkWork, progress: SparkProgress) -> None:
        pass

    def said(self, line: str) -> None:
        pass

    async def hold(self, call_id: str, place: Path, *, shares: int = SEATS, seconds: float = 600.0) -> SparkEnd:
        """The execution is the first letter of the id; `a` and `b` come again and again."""
        await asyncio.to_thread(place.mkdir, exist_ok=True)
        tasks = SparkTasks(
            call_id=call_id,
            execution_id=call_id[0],
            step="step",
            function="lasting:hold",
            common={"directory": str(place), "seconds": seconds, "left": [0] if call_id[0] in "ab" else []},
            shares=list(range(shares)),
        )
        return await self.driver.run(tasks, began=lambda: self.begun.append(call_id))


def answers(end: SparkEnd) -> list[dict[str, Any]]:
    assert isinstance(end.data, list), end
    return [dict(one) for one in end.data if isinstance(one, dict)]


async def process_at(place: Path, share: int) -> int:
    await until((place / f"at-{share}").exists, seconds=START_SECONDS)
    return int((place / f"at-{share}").read_text())


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    one = Session(tmp_path_factory.mktemp("lasting"))
    async with one.driver:
        await one.driver.warm()
        yield one


async def test_a_task_that_stands_still_is_killed_when_it_is_released_and_its_seat_is_free(
    session: Session, tmp_path: Path
) -> None:
    holding = asyncio.create_task(session.hold("1/still", tmp_path / "still"))
    still, other = [await process_at(tmp_path / "still", share) for share in (0, 1)]
    waiting = asyncio.create_task(session.hold("2/next", tmp_path / "next", shares=1))
    os.kill(still, signal.SIGSTOP)

    session.driver.release("1/still", [0, 7])

    await process_at(tmp_path / "next", 0)
    await until(lambda: not is_running(still))
    assert (is_running(other), holding.done()) == (True, False)
    for place in ("still", "next"):
        (tmp_path / place / "go").touch()
    died, went_on = answers(await holding)
    assert (died["code"], went_on["share"]) == ("SPARK_CANCELLED", [1])
    assert answers(await waiting)[0]["share"] == [0]
    assert session.begun[-2:] == ["1/still", "2/next"]
    session.driver.release("1/still", [0, 1])  # which nobody has any more


async def test_a_task_whose_process_gives_itself_up_leaves_its_seat_to_others(session: Session, tmp_path: Path) -> None:
    holding = asyncio.create_task(session.hold("1/hangs", tmp_path / "hangs"))
    await process_at(tmp_path / "hangs", 1)
    waiting = asyncio.create_task(session.hold("2/after", tmp_path / "after", shares=1))

    (tmp_path / "hangs" / "die-0").touch()

    await process_at(tmp_path / "after", 0)
    assert not holding.done()
    for place in ("hangs", "after"):
        (tmp_path / place / "go").touch()
    died, went_on = answers(await holding)
    assert died["error"] and not died["code"].startswith("PY_"), "another job would do better"
    assert went_on["share"] == [1]
    await waiting


async def test_who_comes_later_has_a_seat_within_a_slice_and_as_much_as_the_first_after_that(
    session: Session, tmp_path: Path
) -> None:
    used: Counter[str] = Counter()
    is_over = False

    async def stage(name: str) -> None:
        """One job after the other, as those of slots."""
        number = 0
        while not is_over:
            number += 1
            end = await session.hold(f"{name}/{number}", tmp_path / name, seconds=SLICE_SECONDS)
            used[name[0]] += sum(one["seconds"] for one in answers(end))

    first = [asyncio.create_task(stage(name)) for name in ("a1", "a2", "a3")]  # of one execution
    await until(lambda: used["a"] > 0, seconds=START_SECONDS)
    came_at = time.monotonic()
    second = asyncio.create_task(stage("b"))
    await until(lambda: "b/1" in session.begun, seconds=START_SECONDS)
    waited = time.monotonic() - came_at
    before = used["a"]
    await until(lambda: used["b"] > 16 * SLICE_SECONDS, seconds=START_SECONDS)
    had, others_had = used["b"], used["a"] - before
    is_over = True
    await asyncio.gather(*first, second)

    assert waited < 30.0, "although the others never end"
    assert had / others_had > 0.45, "and not a third of it"
