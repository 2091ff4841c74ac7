"""User Python in real child processes: what survives, what dies, and who never shares a process with whom."""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from noetl_core.canonical import JsonValue
from noetl_core.errors import Overloaded, Unavailable
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.python import PythonTool
from noetl_worker.tools.python_call import Answered, CallEnd, Died, TimedOut
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


def code_of(end: CallEnd) -> JsonValue:
    assert isinstance(end, Answered), end
    assert end.answer.error is not None, end.answer.data
    return end.answer.error["code"]


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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it is about other processes
            await asyncio.sleep(0.005)


async def pids_written_to(path: Path) -> list[int]:
    await until(lambda: path.exists() and len(path.read_text().split()) == 3)
    return [int(text) for text in path.read_text().split()]  # noqa: ASYNC240


# --- results ----------------------------------------------------------------------------------------------


async def test_a_call_returns_its_result_and_what_it_printed(pool: PythonPool) -> None:
    source = "import sys\nprint('out', n)\nprint('err', file=sys.stderr)\nos.write(1, b'raw')\nresult = {'n': n}"

    end = await run(pool, source, n=1)

    assert data_of(end) == {"n": 1}
    assert end.printed.stdout == "out 1\nraw"
    assert end.printed.stderr == "err\n"


async def test_output_of_one_call_does_not_show_in_the_next(pool: PythonPool) -> None:
    await run(pool, "print('first')")

    assert (await run(pool, "print('second')")).printed.stdout == "second\n"


async def test_a_result_that_is_not_json_is_normalized_or_refused_with_its_place(pool: PythonPool) -> None:
    assert data_of(await run(pool, "result = (datetime.date(2024, 1, 2), 2**60)")) == [
        "2024-01-02",
        "1152921504606846976",
    ]

    end = await run(pool, "result = {'rows': [{'x': 1}, {'x': object()}]}")

    assert code_of(end) == "RESULT_NOT_JSON"
    assert isinstance(end, Answered) and end.answer.error is not None
    assert end.answer.error["kind"] == "schema"
    assert "/rows/1/x" in str(end.answer.error["message"])


async def test_a_result_of_the_greatest_depth_arrives(pool: PythonPool) -> None:
    end = await run(pool, "result = 1\nfor _ in range(128): result = [result]")

    assert json.dumps(data_of(end)) == "[" * 128 + "1" + "]" * 128


async def test_large_inputs_and_results_pass(pool: PythonPool) -> None:
    rows: JsonValue = [{"i": i, "text": "x" * 100} for i in range(30_000)]

    assert data_of(await run(pool, "result = rows", rows=rows)) == rows


async def test_a_result_beyond_the_limit_is_an_error_and_the_child_goes_on() -> None:
    limits = PoolLimits(process=ProcessLimits(max_result_bytes=1000))
    async with PythonPool(limits=limits, environment=os.environ) as pool:
        pid = await pid_of(pool)

        assert code_of(await run(pool, "result = 'x' * 1000")) == "RESULT_TOO_LARGE"
        assert await pid_of(pool) == pid


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


async def test_a_warm_call_takes_less_than_three_milliseconds(
    pool: PythonPool, record_property: Callable[[str, object], None]
) -> None:
    await pid_of(pool)
    durations_ms: list[float] = []
    for n in range(200):
        started = time.perf_counter()
        await run(pool, "result = {'n': n + 1}", n=n)
        durations_ms.append((time.perf_counter() - started) * 1000)

    median_ms = statistics.median(durations_ms)
    record_property("warm_call_median_ms", median_ms)
    assert median_ms < 3.0


async def test_a_child_retires_after_so_many_calls() -> None:
    async with PythonPool(limits=PoolLimits(max_calls_per_child=2), environment=os.environ) as pool:
        pids = [await pid_of(pool) for _ in range(4)]

    assert pids[0] == pids[1] != pids[2] == pids[3]


# --- ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import sys; sys.exit(0)", "PY_SystemExit"),
        ("raise KeyboardInterrupt", "PY_KeyboardInterrupt"),
        ("def f(n): return f(n + 1)\nf(0)", "PY_RecursionError"),
        ("raise GeneratorExit", "PY_GeneratorExit"),
    ],
)
async def test_no_exception_of_the_user_ends_the_child(pool: PythonPool, source: str, code: str) -> None:
    pid = await pid_of(pool)

    assert code_of(await run(pool, source)) == code
    assert await pid_of(pool) == pid


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print('last words')\nos._exit(3)", "it exited with code 3"),
        ("print('last words')\nos.kill(os.getpid(), 11)", "it was killed by SIGSEGV"),
        (
            "print('last words')\nif os.fork() == 0:\n  import time\n  time.sleep(300)\nos._exit(4)",
            "it exited with code 4",
        ),
    ],
)
async def test_a_child_that_dies_is_told_with_its_last_words_and_replaced(
    pool: PythonPool, source: str, reason: str
) -> None:
    end = await run(pool, source)

    assert isinstance(end, Died)
    assert end.reason == reason
    assert end.printed.stdout == "last words\n"
    assert data_of(await run(pool, "result = 1")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "os.closerange(3, 1000)\nimport time\ntime.sleep(300)",
        "import struct, time\nfor fd in range(3, 256):\n  try: os.write(fd, struct.pack('!I', 4) + b'evil')\n"
        "  except OSError: pass\ntime.sleep(300)",
        "import struct, time\nfor fd in range(3, 256):\n  try: os.write(fd, struct.pack('!I', 2**32 - 1))\n"
        "  except OSError: pass\ntime.sleep(300)",
    ],
    ids=["hangs up", "forges an answer", "announces four gigabytes"],
)
async def test_a_child_that_breaks_its_protocol_is_killed(pool: PythonPool, source: str) -> None:
    end = await run(pool, source)

    assert isinstance(end, Died)
    assert end.reason == "it broke its protocol"
    assert data_of(await run(pool, "result = 1")) == 1


async def test_a_forged_error_is_still_only_an_error(pool: PythonPool) -> None:
    source = """
import struct, time
head = json.dumps({"id": number, "outcome": "error", "retire": None, "rss_bytes": 0})
frame = (head + chr(10) + json.dumps({"kind": [], "code": {}})).encode()
for fd in range(3, 256):
    try: os.write(fd, struct.pack("!I", len(frame)) + frame)
    except OSError: pass
time.sleep(300)
"""
    end = await run(pool, source, number=1)
    tool = PythonTool(pool)

    assert isinstance(end, Answered)
    outcome = await tool.run(
        ToolCall(
            tenant_id="ada",
            organization_id="two",
            execution_id=1,
            step="s",
            kind="python",
            config={"code": source},
            input={"number": 2},
        )
    )
    assert outcome.error is not None
    assert outcome.error.kind is ErrorKind.UNKNOWN


async def test_code_that_forks_and_returns_twice_answers_once(pool: PythonPool) -> None:
    assert data_of(await run(pool, "pid = os.fork()\nresult = 'both'")) == "both"
    assert data_of(await run(pool, "result = 'next'")) == "next"


async def test_a_timeout_kills_the_child_and_its_descendants(pool: PythonPool, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    started = asyncio.create_task(
        run(pool, "print('busy')\n" + SLEEP_IN_GRANDCHILDREN, timeout_seconds=2.0, path=str(path))
    )
    pids = await pids_written_to(path)

    end = await started

    assert isinstance(end, TimedOut)
    assert end.printed.stdout == "busy\n"
    await until(lambda: not any(map(is_running, pids)))
    assert data_of(await run(pool, "result = 1")) == 1


async def test_a_busy_loop_in_c_is_killed_too(pool: PythonPool) -> None:
    end = await run(pool, "sum(range(10**18))", timeout_seconds=0.05)

    assert isinstance(end, TimedOut)


async def test_cancelling_a_call_kills_its_child_within_milliseconds(pool: PythonPool, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    call = asyncio.create_task(run(pool, SLEEP_IN_GRANDCHILDREN, timeout_seconds=None, path=str(path)))
    pids = await pids_written_to(path)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    cancelled_at = time.monotonic()
    await until(lambda: not any(map(is_running, pids)))
    assert time.monotonic() - cancelled_at < 1.0
    assert data_of(await run(pool, "result = 1")) == 1


async def test_a_flood_of_output_is_bounded_and_the_end_is_kept(pool: PythonPool) -> None:
    end = await run(pool, "for n in range(200_000): print('x' * 50, n)")

    assert len(end.printed.stdout) < 66_000
    assert end.printed.stdout.startswith("… ")
    assert end.printed.stdout.endswith(" 199999\n")


async def test_an_endless_flood_ends_with_its_timeout(pool: PythonPool) -> None:
    end = await run(pool, "while True: print('x' * 1000)", timeout_seconds=0.3)

    assert isinstance(end, TimedOut)
    assert len(end.printed.stdout) < 66_000


async def test_an_address_space_limit_turns_a_memory_hog_into_an_error() -> None:
    limits = PoolLimits(process=ProcessLimits(address_space_bytes=400_000_000))
    async with PythonPool(limits=limits, environment=os.environ) as pool:
        assert code_of(await run(pool, "x = bytearray(2_000_000_000)")) == "PY_MemoryError"
        assert data_of(await run(pool, "result = 1")) == 1


# --- what user code can see -------------------------------------------------------------------------------


async def test_user_code_sees_only_four_variables_and_its_own_descriptors() -> None:
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "NOETL_TOKEN": "s3cret", "PYTHONPATH": "/x"}
    async with PythonPool(limits=PoolLimits(), environment=environment) as pool:
        seen = data_of(
            await run(
                pool,
                "import subprocess, sys\n"
                "fds = lambda: len(os.listdir('/proc/self/fd')) - 1\n"
                "inherited = subprocess.run('ls /proc/self/fd | wc -l', shell=True, close_fds=False,"
                " capture_output=True, text=True).stdout\n"
                "result = [sorted(os.environ), fds(), int(inherited) - 1, sys.stdin.read(),"
                " os.getsid(0) == os.getpid()]",
            )
        )

    assert seen == [["LANG", "PATH"], 5, 3, "", True]


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
