"""shell steps: real commands, their output and exit codes, and that none of them outlives its call."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from noetl_core.canonical import JsonValue
from noetl_testkit.until import until
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.python_pool import PoolLimits, PythonPool
from noetl_worker.tools.python_process import ProcessLimits
from noetl_worker.tools.shell import ShellTool


@pytest.fixture
async def tool() -> AsyncIterator[ShellTool]:
    limits = PoolLimits(size=2, spares=0, process=ProcessLimits(max_output_bytes=10_000))
    environment = {**os.environ, "NOETL_TOKEN": "secret", "LANG": "C.UTF-8"}
    async with PythonPool(limits=limits, environment=environment) as pool:
        yield ShellTool(pool)


def call(cmds: JsonValue, *, timeout_seconds: float | None = 60.0, **names: object) -> ToolCall:
    return ToolCall(
        tenant_id="default",
        organization_id="default",
        execution_id=1,
        step="s",
        kind="shell",
        config={"cmds": cmds},
        names=names,
        timeout_seconds=timeout_seconds,
    )


def result(outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome.data, dict)
    return outcome.data


def failure(outcome: Outcome) -> tuple[ErrorKind, str, bool]:
    assert outcome.error is not None, outcome.data
    return outcome.error.kind, outcome.error.code, outcome.error.retryable


async def test_commands_run_in_order_and_say_what_they_printed(tool: ShellTool) -> None:
    outcome = await tool.run(call(["echo one", "echo two >&2", "printf 'é'"]))

    assert outcome.status == "ok"
    assert outcome.data == {"stdout": "one\né", "stderr": "two\n", "exit_code": 0}


async def test_the_first_command_that_fails_is_the_last(tool: ShellTool) -> None:
    outcome = await tool.run(call(["echo one", "echo so; echo because >&2; exit 3", "echo never"]))

    assert failure(outcome) == (ErrorKind.UNKNOWN, "SHELL_EXIT_3", False)
    assert outcome.data == {"stdout": "one\nso\n", "stderr": "because\n", "exit_code": 3}
    assert outcome.error is not None
    assert outcome.error.message == "a command ended with exit code 3: because"


async def test_a_text_is_one_program_that_stops_where_it_fails(tool: ShellTool) -> None:
    program = "for n in 1 2\ndo echo $n\ndone\nfalse\necho never\n"

    outcome = await tool.run(call(program))

    assert failure(outcome)[1] == "SHELL_EXIT_1"
    assert result(outcome)["stdout"] == "1\n2\n"


async def test_commands_are_templates_and_run_as_written_if_they_are_none(tool: ShellTool) -> None:
    rendered = await tool.run(call(["echo {{ who }}", "echo '{% oops'", "echo {{ 1 + none_such }}"], who="ada"))
    native = await tool.run(call("{{ commands }}", commands=["echo a", "echo {{ who }}"]))

    assert result(rendered)["stdout"] == "ada\n{% oops\n{{ 1 + none_such }}\n"
    assert result(native)["stdout"] == "a\n{{ who }}\n"  # what comes out of a template is no template


async def test_the_environment_is_minimal(tool: ShellTool) -> None:
    lines = result(await tool.run(call("env")))["stdout"].splitlines()

    assert {line.partition("=")[0] for line in lines} <= {"PATH", "HOME", "LANG", "TZ", "PWD", "SHLVL", "_", "OLDPWD"}


async def test_commands_are_given_no_input(tool: ShellTool) -> None:
    assert result(await tool.run(call("cat; echo done")))["stdout"] == "done\n"


async def test_a_command_that_a_signal_ended_has_the_shells_code_for_it(tool: ShellTool) -> None:
    assert failure(await tool.run(call(["kill -TERM $$"])))[1] == "SHELL_EXIT_143"


async def test_a_flood_of_output_is_cut_at_its_beginning(tool: ShellTool) -> None:
    stdout = result(await tool.run(call("head -c 300000 /dev/zero | tr '\\0' x; echo the end")))["stdout"]

    assert stdout.endswith("xthe end\n")
    assert len(stdout) < 11_000


async def test_at_its_timeout_everything_that_was_started_is_killed(tool: ShellTool, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"echo began; sleep 300 & echo $! >> {pids}; setsid sleep 300 & echo $! >> {pids}; wait"

    outcome = await tool.run(call([program], timeout_seconds=1.0))

    assert failure(outcome) == (ErrorKind.TIMEOUT, "TIMEOUT", True)
    assert outcome.data == {"stdout": "began\n", "stderr": "", "exit_code": None}
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


async def test_a_cancelled_call_leaves_nothing_running(tool: ShellTool, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    running = asyncio.create_task(tool.run(call([f"echo $$ > {pid_file}; sleep 300"])))
    await until(lambda: pid_file.exists() and pid_file.read_text().strip())
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    pid = int(pid_file.read_text())
    await until(lambda: not Path(f"/proc/{pid}").exists())


async def test_what_a_call_leaves_in_the_background_ends_with_it(tool: ShellTool, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    outcome = await tool.run(call([f"sleep 300 >/dev/null 2>&1 & echo $! > {pid_file}"]))

    assert outcome.status == "ok"
    pid = int(pid_file.read_text())
    await until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("cmds", [None, "", "  ", [], [1], {"a": 1}, ["echo a", None]])
async def test_without_commands_there_is_nothing_to_run(tool: ShellTool, cmds: JsonValue) -> None:
    assert failure(await tool.run(call(cmds))) == (ErrorKind.SCHEMA, "TOOL_CONFIG", False)


async def test_a_closed_pool_is_a_retryable_error() -> None:
    async with PythonPool(limits=PoolLimits(spares=0), environment={}) as pool:
        tool = ShellTool(pool)

    assert failure(await tool.run(call("true"))) == (ErrorKind.UNKNOWN, "SHELL_UNAVAILABLE", True)


async def test_a_full_pool_is_a_retryable_error() -> None:
    async with PythonPool(limits=PoolLimits(spares=0, max_waiting=0), environment={}) as pool:
        assert failure(await ShellTool(pool).run(call("true"))) == (ErrorKind.RATE_LIMIT, "SHELL_POOL_FULL", True)


async def test_a_secret_of_the_keychain_is_used_and_not_told(tool: ShellTool) -> None:
    program = "t='{{ keychain.api.token }}'; echo $t | wc -c; echo $t; echo not $t >&2; false"
    keychain = {"api": {"token": "nobody-may-see-this"}}

    outcome = await tool.run(call(program, keychain=keychain))

    assert result(outcome)["stdout"] == "20\n***\n"
    assert "nobody-may-see-this" not in str(outcome)
