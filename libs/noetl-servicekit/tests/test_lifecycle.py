import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Real processes and real signals: what is tested is how the process as a whole behaves.
pytestmark = pytest.mark.timeout(240)
Start = Callable[..., "Service"]

PREAMBLE = """
import asyncio, sys, time
from noetl_core.errors import Corrupt, Unavailable
from noetl_servicekit.env import Address, Env
from noetl_servicekit.lifecycle import run_service
ANY_PORT = Address(host="127.0.0.1", port=0)
"""
EPILOGUE = """
sys.exit(run_service("desk", main, description="Answers questions."))
"""
SERVING = """
async def main(group):
    group.ready(ops=await group.serve_ops(ANY_PORT))
"""


class Service:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    def until(self, event: str) -> dict[str, Any]:
        """Read the log up to this event."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == event:
                return self.lines[-1]
        raise AssertionError(f"no {event} in {self.lines}")

    def end(self) -> int:
        """Wait for the end and read the rest of the log."""
        assert self.process.stderr is not None
        self.lines += [json.loads(line) for line in self.process.stderr]
        return self.process.wait(timeout=30)

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(main: str, *arguments: str, **environ: str) -> Service:
        script = tmp_path / f"service{len(started)}.py"
        script.write_text(PREAMBLE + textwrap.dedent(main) + EPILOGUE)
        process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": "", "NOETL_INSTANCE": "desk-0", **environ},
        )
        started.append(process)
        return Service(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_service_gracefully(start: Start, number: signal.Signals) -> None:
    service = start(SERVING)
    ready = service.until("service.ready")
    service.process.send_signal(number)

    assert service.end() == 0
    assert ready["addresses"]["ops"].startswith("127.0.0.1:")
    assert (ready["service"], ready["instance"]) == ("desk", "desk-0")
    assert service.events() == ["service.starting", "service.ready", "service.stopping", "service.stopped"]
    assert service.lines[2]["reason"] == number.name


def test_a_signal_during_the_start_ends_it_and_stops_what_was_started(start: Start) -> None:
    service = start(
        """
        async def main(group):
            async def closed():
                from noetl_servicekit.logging import get_logger
                get_logger().info("pool.closed")
            group.on_stop(closed)
            group.stop("told to")
            await asyncio.sleep(3600)
        """
    )

    assert service.end() == 0
    assert service.events() == ["service.starting", "service.stopping", "pool.closed", "service.stopped"]


def test_a_second_signal_ends_the_process_at_once(start: Start) -> None:
    service = start(
        """
        async def main(group):
            async def hang():
                await asyncio.sleep(3600)
            group.on_stop(hang)
            group.ready()
        """
    )
    service.until("service.ready")
    service.process.send_signal(signal.SIGINT)
    service.until("service.stopping")
    service.process.send_signal(signal.SIGTERM)

    assert service.end() == 128 + signal.SIGTERM
    assert service.events()[-1] == "service.killed"


@pytest.mark.parametrize("hanging", ["await asyncio.sleep(3600)", "time.sleep(3600)"])
def test_parts_that_do_not_stop_are_not_waited_for_even_if_they_hold_the_event_loop(start: Start, hanging: str) -> None:
    service = start(
        f"""
        async def main(group):
            async def hang():
                {hanging}
            group.on_stop(hang)
            group.stop("done")
        """,
        NOETL_STOP_SECONDS="0.2",
    )

    assert service.end() == 1
    assert service.events()[-1] == "service.stop_timed_out"


def test_bad_settings_are_all_reported_with_an_exit_code_of_their_own(start: Start) -> None:
    of_the_process = start(SERVING, NOETL_LOG_LEVEL="loud", NOETL_STOP_SECONDS="soon")
    of_the_service = start(
        """
        async def main(group):
            env = Env({})
            env.text("NOETL_DSN")
            env.integer("NOETL_COUNT")
            env.check()
        """
    )

    assert of_the_process.end() == 2
    assert of_the_process.lines[-1]["problems"] == [
        "NOETL_LOG_LEVEL must be one of debug, info, warning, error, not 'loud'",
        "NOETL_STOP_SECONDS must be a number, not 'soon'",
    ]
    assert of_the_service.end() == 2
    line = next(line for line in of_the_service.lines if line["event"] == "settings.invalid")
    assert line["problems"] == ["NOETL_DSN is not set", "NOETL_COUNT is not set"]
    assert "exception" not in line


def test_a_start_that_fails_says_why(start: Start) -> None:
    ours = start("async def main(group):\n    raise Unavailable('postgres is away')")
    strange = start("async def main(group):\n    raise KeyError('odd')")

    assert ours.end() == 1
    failed = next(line for line in ours.lines if line["event"] == "service.failed")
    assert (failed["code"], failed["reason"], "exception" in failed) == ("unavailable", "postgres is away", False)
    assert strange.end() == 1
    assert "KeyError" in next(line for line in strange.lines if line["event"] == "service.failed")["exception"]


def test_a_loop_that_crashes_ends_the_process_with_a_failure(start: Start) -> None:
    service = start(
        """
        async def main(group):
            async def body(beat):
                raise Corrupt("bytes differ")
            group.loop("drain", body)
            group.ready()
        """
    )

    assert service.end() == 1
    assert "loop.crashed" in service.events()
    assert service.lines[-1]["exit_code"] == 1


def test_a_stop_that_fails_is_a_failure(start: Start) -> None:
    service = start(
        """
        async def main(group):
            async def fail():
                raise RuntimeError("odd")
            group.on_stop(fail)
            group.stop("done")
        """
    )

    assert service.end() == 1
    assert "service.stop_failed" in service.events()


@pytest.mark.parametrize(("option", "said"), [("--help", "Answers questions."), ("--version", "noetl-desk 0.")])
def test_help_and_version_are_answered_without_settings(start: Start, option: str, said: str) -> None:
    service = start(SERVING, option, NOETL_LOG_LEVEL="loud")
    output, errors = service.process.communicate(timeout=30)

    assert (service.process.returncode, errors) == (0, "")
    assert said in output
