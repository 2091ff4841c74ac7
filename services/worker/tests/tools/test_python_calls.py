"""What user code can do in a real child process, how its calls end, and what it gets to see."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from noetl_core.canonical import JsonValue
from noetl_testkit.until import until
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.python import PythonTool
from noetl_worker.tools.python_call import Answered, CallEnd, Died, TimedOut
from noetl_worker.tools.python_pool import Owner, PoolLimits, PythonCode, PythonPool
from noetl_worker.tools.python_process import ProcessLimits

ADA = Owner(tenant_id="ada", organization_id="one")

EVERYWHERE = "import struct, time\nfor fd in map(int, os.listdir('/proc/self/fd')):\n"
"""Into each descriptor, however many the process that started it had."""

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


async def pids_written_to(path: Path) -> list[int]:
    def written() -> list[int]:
        return [int(text) for text in path.read_text().split()] if path.exists() else []

    await until(lambda: len(written()) == 3)
    return written()


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
        "import time\nos.closerange(3, os.sysconf('SC_OPEN_MAX'))\ntime.sleep(300)",
        EVERYWHERE + "  try: fd > 2 and os.write(fd, struct.pack('!I', 4) + b'evil')\n"
        "  except OSError: pass\ntime.sleep(300)",
        EVERYWHERE + "  try: fd > 2 and os.write(fd, struct.pack('!I', 2**32 - 1))\n"
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
for fd in map(int, os.listdir("/proc/self/fd")):
    try: fd > 2 and os.write(fd, struct.pack("!I", len(frame)) + frame)
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


async def test_cancelling_a_call_kills_its_child_and_what_that_started(pool: PythonPool, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    call = asyncio.create_task(run(pool, SLEEP_IN_GRANDCHILDREN, timeout_seconds=None, path=str(path)))
    pids = await pids_written_to(path)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    await until(lambda: not any(map(is_running, pids)))
    assert data_of(await run(pool, "result = 1")) == 1


async def test_a_flood_of_output_is_bounded_and_both_ends_are_kept(pool: PythonPool) -> None:
    end = await run(pool, "for n in range(200_000): print('x' * 50, n)")

    assert len(end.printed.stdout) < 66_000
    assert end.printed.stdout.startswith("x" * 50 + " 0\n")
    assert " bytes before this are left out\n" in end.printed.stdout
    assert end.printed.stdout.endswith(" 199999\n")


async def test_what_code_logs_is_shown_and_its_settings_do_not_outlive_the_call(pool: PythonPool) -> None:
    quiet = "import logging; logging.disable(logging.CRITICAL); logging.getLogger().handlers.clear(); result = 1"
    assert data_of(await run(pool, quiet)) == 1

    end = await run(pool, "import logging; logging.info('loaded %d rows', 5); logging.getLogger('x').debug('no')")

    assert end.printed.stderr == "INFO root: loaded 5 rows\n"


async def test_a_failing_call_shows_what_it_printed_and_its_traceback(pool: PythonPool) -> None:
    call = ToolCall(
        tenant_id="ada",
        organization_id="one",
        execution_id=1,
        step="s",
        kind="python",
        config={"code": "print('almost'); raise ValueError('no')"},
    )

    outcome = await PythonTool(pool).run(call)

    assert outcome.printed is not None
    assert outcome.printed.stdout == "almost\n"
    assert outcome.printed.stderr == "line 1: print('almost'); raise ValueError('no')\nValueError: no\n"


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
