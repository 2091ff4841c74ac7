"""A seed that fails has to fail again, in another process too, and with less around it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest
from noetl_testkit.simulation.__main__ import main, seeds_of
from noetl_testkit.simulation.faults import Fault, Kind
from noetl_testkit.simulation.mutations import without_shared_end
from noetl_testkit.simulation.shrink import report, shrink
from noetl_testkit.simulation.verdict import Verdict, judge
from noetl_testkit.simulation.world import Script, script_of

SEEDS = (3, 17, 27, 33)
FRAMES = (15, 16, 23)
"""Their events tell how long calls took."""


@pytest.mark.parametrize("seed", SEEDS + FRAMES)
def test_a_seed_gives_the_same_bytes_and_the_same_trace_again(seed: int) -> None:
    first, second = judge(script_of(seed)), judge(script_of(seed))

    assert first.digest == second.digest
    assert first.trace == second.trace


def test_a_seed_gives_the_same_bytes_in_another_process() -> None:
    code = (
        "from noetl_testkit.simulation.verdict import judge\n"
        "from noetl_testkit.simulation.world import script_of\n"
        f"print(' '.join(judge(script_of(seed)).digest for seed in {SEEDS[:3]}))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)

    assert told.stdout.split() == [judge(script_of(seed)).digest for seed in SEEDS[:3]]


class Litter:
    """What a test left behind that waits for the garbage collector, and then for whichever loop is running."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        with suppress(RuntimeError):
            asyncio.get_running_loop().call_soon(lambda: None)


def test_what_others_left_behind_takes_no_step_in_a_history() -> None:
    alone = judge(script_of(SEEDS[-1]))
    for _ in range(10):
        Litter()

    beside_others = judge(script_of(SEEDS[-1]))

    assert (beside_others.steps, beside_others.trace) == (alone.steps, alone.trace)


def test_other_seeds_are_other_histories() -> None:
    assert len({judge(script_of(seed)).digest for seed in SEEDS}) == len(SEEDS)


def test_faults_that_do_not_matter_are_left_out_of_what_is_shown() -> None:
    cause = Fault(Kind.CALL_LOST, 40, 1.0)
    faults = (cause, *(Fault(Kind.MESSAGE_LOST, place) for place in range(20)))

    def fails_by_one(script: Script) -> Verdict:
        problems = ["lost"] if cause in script.faults else []
        return Verdict(script=script, digest="", seconds=0.0, steps=0, problems=problems)

    found = shrink(fails_by_one(replace(script_of(0), faults=faults)), run=fails_by_one)

    assert found.script.faults == (cause,)
    assert "call lost at call 40" in report(found)


def test_the_command_names_the_seed_that_fails_and_shows_why(capsys: pytest.CaptureFixture[str]) -> None:
    racing = next(seed for seed in range(1000) if script_of(seed).minds == ("cancel",))
    with without_shared_end():
        found = next(seed for seed in range(racing, racing + 1000) if judge(script_of(seed)).problems)
        assert main([f"{found}..{found}", "--jobs", "0"]) == 1
    shown = capsys.readouterr().out

    assert f"failed: {found}" in shown
    assert "terminal events" in shown or "execution/end" in shown
    assert "execution.cancelled" in shown


def test_seeds_are_a_count_or_a_range() -> None:
    assert seeds_of("3") == range(3)
    assert seeds_of("5..7") == range(5, 8)
