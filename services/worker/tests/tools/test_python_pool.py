"""Who shares a child process with whom, for how long, and that none outlives its worker."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from noetl_core.canonical import JsonValue
from noetl_core.errors import Overloaded, Unavailable
from noetl_testkit.until import until
from noetl_worker.tools.python_call import Answered, CallEnd, Died
from noetl_worker.tools.python_pool import Owner, PoolLimits, PythonCode, PythonPool
from noetl_worker.tools.python_process import ProcessLimits, PythonProcess

ADA = Owner(tenant_id="ada", organization_id="one")
BOB = Owner(tenant_id="bob", organization_id="one")

SLEEP_IN_GRANDCHILDREN = """
import subprocess, sys, time
kept = subprocess.Popen(["sleep", "300"])
escaped = subprocess.Popen(["sleep", "300"], start_new_session=True)
open(path, "w").write(f"{os.getpid()} {kept.pid} {escaped.pid}")
time.sleep(300)
"""


@pytest.fixture
async def pool() -> AsyncIterator[PythonPool]:
    async with PythonPool(limits=PoolLimits(), environment=os.environ) as pool:
        yield pool


async def run(
    pool: PythonPool,
    source: str,
    *,
    owner: Owner = ADA,
    timeout_seconds: float | None = 30.0,
    **inputs: JsonValue,
) -> CallEnd:
    return await pool.run(owner=owner, code=PythonCode(source=source, inputs=inputs), timeout_seconds=timeout_seconds)


def data_of(end: CallEnd) -> JsonValue:
    assert isinstance(end, Answered), end
    assert end.answer.error is None, end.answer.error
    return end.answer.data


async def pid_of(pool: PythonPool, *, owner: Owner = ADA) -> int:
    pid = data_of(await run(pool, "result = os.getpid()", owner=owner))
    assert isinstance(pid, int)
    return pid


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


async def pids_written_to(path: Path) -> list[int]:
    def written() -> list[int]:
        return [int(text) for text in path.read_text().split()] if path.exists() else []

    await until(lambda: len(written()) == 3)
    return written()


# --- one child for many calls -----------------------------------------------------------------------------


async def test_calls_of_one_owner_reuse_a_child_with_fresh_names_and_surroundings(pool: PythonPool) -> None:
    pid = await pid_of(pool)
    source = """
import sys, signal
leftover = 1
os.chdir('/tmp'); os.environ['SECRET'] = 'x'; sys.path.insert(0, '/nowhere'); sys.argv.append('x')
sys.stdout = None; sys.setrecursionlimit(5000); signal.alarm(1)
"""
    await run(pool, source)

    seen = await run(
        pool,
        "import sys, signal\nprint('heard')\n"
        "result = ['leftover' in globals(), os.getcwd(), 'SECRET' in os.environ, '/nowhere' in sys.path,"
        " len(sys.argv), sys.getrecursionlimit(), signal.alarm(0)]",
    )

    assert data_of(seen) == [False, os.getcwd(), False, False, 1, 1000, 0]  # noqa: PTH109
    assert seen.printed.stdout == "heard\n"
    assert await pid_of(pool) == pid


async def test_a_child_never_serves_two_owners(pool: PythonPool) -> None:
    owners = [Owner(tenant_id=tenant, organization_id=organization) for tenant in "abc" for organization in "xy"]

    served: dict[int, set[Owner]] = {}
    for owner in owners * 3:
        served.setdefault(await pid_of(pool, owner=owner), set()).add(owner)

    assert all(len(tenants) == 1 for tenants in served.values())


async def test_the_worker_has_never_more_children_than_slots_and_spares() -> None:
    limits = PoolLimits(size=2, spares=1)
    async with PythonPool(limits=limits, environment=os.environ) as pool:
        for tenant in "abcdef":
            await pid_of(pool, owner=Owner(tenant_id=tenant, organization_id="x"))

        await until(lambda: len(children_of_this_process()) == 3)


def children_of_this_process() -> list[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in pids if is_running(pid) and b"python_child" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_fifty_calls_at_once_share_four_children() -> None:
    async with PythonPool(limits=PoolLimits(size=4), environment=os.environ) as pool:
        ends = await asyncio.gather(
            *(run(pool, "import time\ntime.sleep(0.002)\nresult = [n, os.getpid()]", n=n) for n in range(50))
        )

    answers = [data_of(end) for end in ends]
    assert [answer[0] for answer in answers if isinstance(answer, list)] == list(range(50))
    assert len({answer[1] for answer in answers if isinstance(answer, list)}) == 4


async def test_more_waiting_calls_than_allowed_are_refused() -> None:
    async with PythonPool(limits=PoolLimits(size=1, max_waiting=1), environment=os.environ) as pool:
        running = asyncio.create_task(run(pool, "import time\ntime.sleep(300)"))
        waiting = asyncio.create_task(run(pool, "result = 1"))
        await until(lambda: pool.waiting_calls == 1)

        with pytest.raises(Overloaded):
            await run(pool, "result = 2")

        running.cancel()
        assert data_of(await waiting) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(300,), daemon=True).start()",
        "import subprocess\nsubprocess.Popen(['sleep', '300'])",
        "data = bytearray(64_000_000)\nimport builtins\nbuiltins.kept = data",
        "import sys\nsys.stdout.close()",
    ],
    ids=["a thread", "a process", "memory", "a closed stream"],
)
async def test_a_child_that_keeps_something_of_a_call_is_not_used_again(source: str) -> None:
    limits = PoolLimits(max_rss_bytes=64_000_000)
    async with PythonPool(limits=limits, environment=os.environ) as pool:
        pid = await pid_of(pool)

        data_of(await run(pool, source))

        assert await pid_of(pool) != pid
        await until(lambda: not is_running(pid))


async def test_a_warm_call_starts_no_process(pool: PythonPool) -> None:
    pid = await pid_of(pool)

    for n in range(50):
        assert data_of(await run(pool, "import os\nresult = {'n': n + 1, 'pid': os.getpid()}", n=n)) == {
            "n": n + 1,
            "pid": pid,
        }


async def test_a_child_retires_after_so_many_calls() -> None:
    async with PythonPool(limits=PoolLimits(max_calls_per_child=2), environment=os.environ) as pool:
        pids = [await pid_of(pool) for _ in range(4)]

    assert pids[0] == pids[1] != pids[2] == pids[3]


# --- the pool's own life ----------------------------------------------------------------------------------


async def test_closing_the_pool_ends_every_child_and_running_call(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    async with PythonPool(limits=PoolLimits(spares=2), environment=os.environ) as pool:
        idle = await pid_of(pool, owner=BOB)
        running = asyncio.create_task(run(pool, SLEEP_IN_GRANDCHILDREN, path=str(path)))
        pids = await pids_written_to(path)

    assert isinstance(await running, Died)
    assert children_of_this_process() == []
    await until(lambda: not any(map(is_running, [idle, *pids])))
    with pytest.raises(Unavailable):
        await run(pool, "result = 1")


async def test_a_call_that_is_cancelled_while_its_child_starts_leaves_a_good_spare() -> None:
    async with PythonPool(limits=PoolLimits(size=1, spares=1), environment=os.environ) as pool:
        await pid_of(pool)
        impatient = asyncio.create_task(pid_of(pool, owner=BOB))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient

        await pid_of(pool, owner=BOB)


async def test_an_idle_child_that_died_is_replaced_unnoticed(pool: PythonPool) -> None:
    pid = await pid_of(pool)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}").exists())

    assert await pid_of(pool) != pid


async def test_a_child_that_is_not_ready_in_time_is_given_up() -> None:
    with pytest.raises(Unavailable):
        await PythonProcess.start(environment={}, limits=ProcessLimits(start_timeout_seconds=0.0))

    assert children_of_this_process() == []


async def test_without_an_interpreter_there_is_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    with pytest.raises(Unavailable):
        await PythonProcess.start(environment={}, limits=ProcessLimits())


WORKER = """
import asyncio, os, sys
from noetl_worker.tools.python_pool import Owner, PoolLimits, PythonCode, PythonPool

async def main():
    async with PythonPool(limits=PoolLimits(), environment=os.environ) as pool:
        code = PythonCode(source=sys.argv[1], inputs={"path": sys.argv[2]})
        await pool.run(owner=Owner(tenant_id="a", organization_id="b"), code=code, timeout_seconds=None)

asyncio.run(main())
"""


async def test_children_and_their_children_die_with_a_killed_worker(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    busy = SLEEP_IN_GRANDCHILDREN.replace(", start_new_session=True", "").replace("time.sleep(300)", "while True: pass")
    worker = subprocess.Popen([sys.executable, "-c", WORKER, busy, str(path)])  # noqa: ASYNC220
    pids = await pids_written_to(path)

    worker.kill()
    worker.wait()  # noqa: ASYNC222, RUF100 - it is dead

    await until(lambda: not any(map(is_running, pids)))
